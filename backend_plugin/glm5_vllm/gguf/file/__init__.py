"""The GGUF file: header, splits, quant types and tensor bytes. Knows nothing of GLM-5."""
