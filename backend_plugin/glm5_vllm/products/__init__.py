"""Products of routed experts by the weights of a GGUF: which kernel multiplies, by type and number of tokens."""
