"""Brings missing bytes from a source into partial files, hashes them, and continues at the byte after a kill.

`fetch.Fetch` is the entry point. `schedule` hands out parts of files, `worker` brings them, `landing` writes them.
"""
