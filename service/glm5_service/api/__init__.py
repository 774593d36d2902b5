"""The API's outer gate: runs inside vLLM's API server, imports neither vLLM nor the service's rest."""
