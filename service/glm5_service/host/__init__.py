"""This host: its GPUs and limits, its ports, and which vLLM is installed. Looks, decides nothing."""
