"""Staging, starting and watching GLM-5 on vLLM. Never imports vLLM or glm5_vllm."""
