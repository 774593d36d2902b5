"""The model volume: its folders, its lock, the revision under construction, and what is published.

Whatever must survive a crash or a second stager is here. Nothing here knows where a model comes from.
"""
