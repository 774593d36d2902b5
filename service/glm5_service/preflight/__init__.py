"""Checks before the engine starts: facts of the host and the model, named rules over them, one report."""
