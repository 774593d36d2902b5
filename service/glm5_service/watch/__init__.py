"""What is seen of a running engine (log, processes, API, metrics, attestations), and the verdict on it.

`health` judges; all other modules look. Nothing here starts or stops anything.
"""
