"""The vLLM plugin for GLM-5: sparse MLA attention, the GGUF loader and the CPU profile. Imports nothing heavy."""
