"""Fetches missing bytes from a source into partial files and hashes them. Continues at the byte after a kill.

`fetch.Fetch` is the entry point. `schedule` hands out parts of files, `worker` fetches them, `landing` writes them.
"""
