"""How fields of quant blocks are taken out of their bytes, for dequant.py and codebooks.py."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def as_float(dtype: torch.dtype, columns: torch.Tensor) -> torch.Tensor:
    """Reinterpret byte columns [n, k] as `dtype`, widened to float32."""
    return columns.contiguous().view(dtype).float()


def half(blocks: torch.Tensor, start: int) -> torch.Tensor:
    """The half-precision number at byte `start` of each block, [n, 1]."""
    return as_float(torch.float16, blocks[:, start : start + 2])


def fields(columns: torch.Tensor, shifts: Sequence[int], mask: int) -> torch.Tensor:
    """Bit fields of each byte, shift-major in a group: [n, groups, bytes] -> [n, groups, shifts, bytes]."""
    shift = torch.tensor(shifts, dtype=torch.uint8, device=columns.device)[:, None]
    return (columns.unsqueeze(-2) >> shift) & mask


def bits(columns: torch.Tensor) -> torch.Tensor:
    """The bits of each byte, the lowest first: [..., bytes] -> [..., bytes, 8]."""
    return (columns.unsqueeze(-1) >> torch.arange(8, dtype=torch.uint8, device=columns.device)) & 1


def words(columns: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Little-endian words of the signed type `dtype`, [..., bytes] -> [..., words]; to be shifted, then masked."""
    return columns.contiguous().view(dtype)
