"""Staging, starting and watching GLM-5 on vLLM. Never imports vLLM or glm5_vllm."""

__version__ = "0.1.0"
