"""The engine as a child process: its command line, its environment, its caches, and how it is signalled and reaped."""
