"""Float32 torch reference of dequantisation, one function per ggml type: the oracle of every kernel.

Each function follows ggml's order of operations, so its result is the same to the last bit. Block layouts are
those of ggml-common.h; offsets in a block are spelt out where it is taken apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from glm5_vllm.gguf.errors import GGUFError
from glm5_vllm.gguf.file.quant_types import IQ4_VALUES, QuantType
from glm5_vllm.gguf.values.blocks import as_float, bits, fields, half
from glm5_vllm.gguf.values.codebooks import CODEBOOK_BLOCKS

# blocks taken at once: the integer temporaries of 65,536 super-blocks take about 64 MiB
_BLOCKS_AT_ONCE = 1 << 16


def dequantize(raw: torch.Tensor, quant: QuantType, shape: Sequence[int]) -> torch.Tensor:
    """Turn the bytes of a tensor, or of whole rows of it, into floats.

    Args:
        raw: uint8, any shape, holding exactly the blocks of `shape` in order.
        quant: the type of the blocks.
        shape: the shape of the result, in numpy order.

    Returns:
        float32 tensor of `shape`, on the device of `raw`.

    Raises:
        GGUFError: the type has no reference, or the bytes are not those of `shape`.
    """
    function = _BLOCKS.get(quant.name)
    if function is None:
        raise GGUFError("type to dequantise", quant.name, expected=f"one of {', '.join(_BLOCKS)}")
    elements = torch.Size(shape).numel()
    expected = elements // quant.block_elements * quant.block_bytes
    if raw.numel() != expected or elements % quant.block_elements:
        raise GGUFError(
            f"bytes of a {quant.name} tensor of shape {list(shape)}", raw.numel(), expected=f"{expected}"
        )
    blocks = raw.reshape(-1, quant.block_bytes)
    out = torch.empty(len(blocks), quant.block_elements, dtype=torch.float32, device=raw.device)
    # plain floats are blocks of one element; they need no small steps
    step = len(blocks) if quant.block_elements == 1 else _BLOCKS_AT_ONCE
    for start in range(0, len(blocks), max(step, 1)):
        part = slice(start, start + step)
        out[part] = function(blocks[part]).reshape(-1, quant.block_elements)
    return out.reshape(tuple(shape))


def _f32(blocks: torch.Tensor) -> torch.Tensor:
    return as_float(torch.float32, blocks)


def _f16(blocks: torch.Tensor) -> torch.Tensor:
    return as_float(torch.float16, blocks)


def _bf16(blocks: torch.Tensor) -> torch.Tensor:
    return as_float(torch.bfloat16, blocks)


def _q8_0(blocks: torch.Tensor) -> torch.Tensor:
    return half(blocks, 0) * as_float(torch.int8, blocks[:, 2:])


def _q4_0(blocks: torch.Tensor) -> torch.Tensor:
    # low nibbles are elements 0 to 15, high nibbles 16 to 31
    q = fields(blocks[:, None, 2:], (0, 4), 15).reshape(-1, 32).float() - 8
    return half(blocks, 0) * q


def _q4_1(blocks: torch.Tensor) -> torch.Tensor:
    # d [2], minimum [2], q [16]
    q = fields(blocks[:, None, 4:], (0, 4), 15).reshape(-1, 32).float()
    return half(blocks, 0) * q + half(blocks, 2)


def _q5_0(blocks: torch.Tensor) -> torch.Tensor:
    low = fields(blocks[:, None, 6:], (0, 4), 15).reshape(-1, 32)
    q = (low | (bits(blocks[:, 2:6]).flatten(1) << 4)).float() - 16
    return half(blocks, 0) * q


def _q5_1(blocks: torch.Tensor) -> torch.Tensor:
    # d [2], minimum [2], high bits [4], q [16]
    low = fields(blocks[:, None, 8:], (0, 4), 15).reshape(-1, 32)
    q = (low | (bits(blocks[:, 4:8]).flatten(1) << 4)).float()
    return half(blocks, 0) * q + half(blocks, 2)


def _iq4_nl(blocks: torch.Tensor) -> torch.Tensor:
    q = fields(blocks[:, None, 2:], (0, 4), 15).reshape(-1, 32)
    return half(blocks, 0) * _iq4_values(q)


def _iq4_values(q: torch.Tensor) -> torch.Tensor:
    return torch.tensor(IQ4_VALUES, dtype=torch.float32, device=q.device)[q.long()]


def _iq4_xs(blocks: torch.Tensor) -> torch.Tensor:
    # d [2], high scale bits [2], low scale nibbles [4], q [128]; 8 sub-blocks of 32
    high = fields(blocks[:, 2:4, None], (0, 2, 4, 6), 3).reshape(-1, 8)
    low = fields(blocks[:, 4:8, None], (0, 4), 15).reshape(-1, 8)
    scale = half(blocks, 0) * ((low | (high << 4)).float() - 32)
    q = fields(blocks[:, 8:].reshape(-1, 8, 16), (0, 4), 15).reshape(-1, 8, 32)
    return scale[..., None] * _iq4_values(q)


def _q2_k(blocks: torch.Tensor) -> torch.Tensor:
    # scale and minimum nibbles [16], q [64], d [2], dmin [2]; 16 sub-blocks of 16
    scale = half(blocks, 80) * (blocks[:, :16] & 15).float()
    minimum = half(blocks, 82) * (blocks[:, :16] >> 4).float()
    q = fields(blocks[:, 16:80].reshape(-1, 2, 32), (0, 2, 4, 6), 3).reshape(-1, 16, 16).float()
    return scale[..., None] * q - minimum[..., None]


def _q3_k(blocks: torch.Tensor) -> torch.Tensor:
    # high bits [32], q [64], scales [12], d [2]; 16 sub-blocks of 16
    low = fields(blocks[:, None, 96:104], (0, 4), 15).reshape(-1, 16)
    high = fields(blocks[:, None, 104:108], (0, 2, 4, 6), 3).reshape(-1, 16)
    scale = half(blocks, 108) * ((low | (high << 4)).float() - 32)
    q = fields(blocks[:, 32:96].reshape(-1, 2, 32), (0, 2, 4, 6), 3).reshape(-1, 16, 16)
    # a clear high bit takes 4 away
    bit = fields(blocks[:, None, :32], tuple(range(8)), 1).reshape(-1, 16, 16)
    return scale[..., None] * (q.float() - (bit ^ 1).float() * 4)


def _scales_of_6_bits(packed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """8 scales and 8 minima of 6 bits each, [n, 8] floats, from the 12 bytes that Q4_K and Q5_K share."""
    scale, minimum, mixed = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = torch.cat([scale & 63, (mixed & 15) | ((scale >> 6) << 4)], 1)
    minima = torch.cat([minimum & 63, (mixed >> 4) | ((minimum >> 6) << 4)], 1)
    return scales.float(), minima.float()


def _affine(blocks: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """d * scale * q - dmin * minimum for the 8 sub-blocks of Q4_K and Q5_K; q [n, 8, 32]."""
    scales, minima = _scales_of_6_bits(blocks[:, 4:16])
    scale, minimum = half(blocks, 0) * scales, half(blocks, 2) * minima
    return scale[..., None] * q.float() - minimum[..., None]


def _q4_k(blocks: torch.Tensor) -> torch.Tensor:
    # d [2], dmin [2], scales [12], q [128]
    return _affine(blocks, fields(blocks[:, 16:].reshape(-1, 4, 32), (0, 4), 15).reshape(-1, 8, 32))


def _q5_k(blocks: torch.Tensor) -> torch.Tensor:
    # d [2], dmin [2], scales [12], high bits [32], q [128]
    low = fields(blocks[:, 48:].reshape(-1, 4, 32), (0, 4), 15).reshape(-1, 8, 32)
    high = fields(blocks[:, None, 16:48], tuple(range(8)), 1).reshape(-1, 8, 32)
    return _affine(blocks, low | (high << 4))


def _q6_k(blocks: torch.Tensor) -> torch.Tensor:
    # low nibbles [128], high bit pairs [64], scales int8 [16], d [2]; 16 sub-blocks of 16
    low = fields(blocks[:, :128].reshape(-1, 2, 64), (0, 4), 15).reshape(-1, 16, 16)
    high = fields(blocks[:, 128:192].reshape(-1, 2, 32), (0, 2, 4, 6), 3).reshape(-1, 16, 16)
    scale = half(blocks, 208) * as_float(torch.int8, blocks[:, 192:208])
    return scale[..., None] * ((low | (high << 4)).float() - 32)


_BLOCKS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "F32": _f32,
    "F16": _f16,
    "BF16": _bf16,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
    **CODEBOOK_BLOCKS,
}
