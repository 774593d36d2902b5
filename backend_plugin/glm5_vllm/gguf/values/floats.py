"""Planned tensors as float32: the reference of what is put into the model, and how `kv_b_proj` is joined."""

from __future__ import annotations

import torch

from glm5_vllm.gguf.file.header import TensorInfo
from glm5_vllm.gguf.file.read import TensorReader
from glm5_vllm.gguf.model.hyperparameters import Hyperparameters
from glm5_vllm.gguf.plan.names import Treatment
from glm5_vllm.gguf.plan.planned import PlannedTensor
from glm5_vllm.gguf.values.dequant import dequantize


def read_float(reader: TensorReader, planned: PlannedTensor, h: Hyperparameters) -> torch.Tensor:
    """Read and dequantise one planned tensor, whatever its treatment; float32 of `planned.shape`."""
    if planned.treatment is Treatment.FUSE_KV_B:
        k_b, v_b = (_dequantized(reader, source) for source in planned.sources)
        return fuse_kv_b(k_b, v_b, h)
    return _dequantized(reader, planned.sources[0])


def fuse_kv_b(k_b: torch.Tensor, v_b: torch.Tensor, h: Hyperparameters) -> torch.Tensor:
    """Join the two halves that llama.cpp splits `kv_b_proj` into (its converter transposes the key half).

    Args:
        k_b: [heads, kv_lora, nope], or the same flattened to two dimensions.
        v_b: [heads, value, kv_lora], or the same flattened.
        h: the model's hyperparameters.

    Returns:
        [heads * (nope + value), kv_lora], contiguous.
    """
    keys = k_b.reshape(h.heads, h.kv_lora, h.nope_dim).transpose(1, 2)
    values = v_b.reshape(h.heads, h.value_dim, h.kv_lora)
    return torch.cat([keys, values], dim=1).reshape(-1, h.kv_lora)


def _dequantized(reader: TensorReader, source: TensorInfo) -> torch.Tensor:
    return dequantize(reader.raw(source), source.quant, source.shape)
