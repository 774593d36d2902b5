"""`glm5 serve`: starts the engine, watches it, answers the probes and drains. `start` runs the steps in order."""
