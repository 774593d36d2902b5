"""Observes a running engine (log, processes, API, metrics, attestations) and judges its health.

`health` judges. All other modules observe. No module here starts or stops anything.
"""
