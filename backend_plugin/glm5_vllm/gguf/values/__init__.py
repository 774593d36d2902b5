"""Tensor bytes as float32: the reference dequantisation of every quant type."""
