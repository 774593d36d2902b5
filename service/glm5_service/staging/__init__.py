"""Brings a model from a source to a volume: list, plan, fetch, verify, publish, in this order.

`command.run` is the entry point and `stager` holds the order of the steps. The folders are the pipeline:
`sources` lists files and opens byte ranges, `transfer` brings the bytes, `store` keeps and publishes them.
Readers of a published model use `store.manifest` (what it is) and `store.inuse` (keep it from being pruned).
"""
