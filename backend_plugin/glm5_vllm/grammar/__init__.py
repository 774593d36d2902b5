"""Compiles the grammar of a structured output in a process that can be killed, before the engine compiles it."""
