"""`glm5 serve`: starts the engine, stays with it, answers the probes and drains. `start` runs the steps in order."""
