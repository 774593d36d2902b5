"""Stands in for the plugin in tests of the service: same commands, no vLLM. Put its parent on PYTHONPATH."""
