"""`glm5 sidecar`: one page of metrics for the whole pod, from the run directory, the supervisor and vLLM."""
