"""Brings a model from a source to a volume: plan, fetch, verify, publish, in this order.

`command.run` is the way in. The reader's side is `manifest` (what is published) and `inuse` (keep it from pruning).
"""
