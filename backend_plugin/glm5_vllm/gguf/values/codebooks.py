"""Float32 torch reference of the ggml types that index a codebook: IQ1, IQ2 and IQ3. Part of dequant.py.

An index stands for 4 or 8 values at once. Which values was found by search, so there is no formula: they are read from
the gguf package, which vllm-gguf-plugin brings along.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from glm5_vllm.gguf.values.blocks import bits, fields, half, words

# IQ1 moves its values -1, 0 and 1 by this, up or down for 8 or 32 at a time
_IQ1_DELTA = 0.125


@functools.cache
def _codebook(name: str) -> torch.Tensor:
    """Values of each entry, [entries, 4 or 8] floats."""
    # not at the top: gguf takes a while to import, and most files have no such types
    import gguf.quants

    kind = getattr(gguf.quants, name)
    kind.init_grid()
    return torch.from_numpy(kind.grid[0, 0].copy())


def _entries(name: str, index: torch.Tensor) -> torch.Tensor:
    """The codebook's entries at `index`, [*index.shape, 4 or 8]."""
    return _codebook(name).to(index.device)[index.long()]


def _signs(of: torch.Tensor) -> torch.Tensor:
    """1 for a clear bit and -1 for a set one, [..., bytes] -> [..., bytes, 8]."""
    return 1 - 2 * bits(of).float()


def _signs_of_7(index: torch.Tensor) -> torch.Tensor:
    """As `_signs`, of 7 bits: the eighth makes the number of set bits even."""
    low = (index & 127).to(torch.uint8)
    parity = bits(low).sum(-1).to(torch.uint8) & 1
    return _signs(low | (parity << 7))


def _nibbles(columns: torch.Tensor) -> torch.Tensor:
    """Nibbles of each byte, the low one first, [n, bytes] -> [n, 2 * bytes]."""
    return fields(columns[:, :, None], (0, 4), 15).flatten(1)


def _shifted(word: torch.Tensor, *shifts: int) -> torch.Tensor:
    """Each word shifted right by each of `shifts`, [..., words] -> [..., words, shifts]."""
    return word.unsqueeze(-1) >> torch.tensor(shifts, dtype=word.dtype, device=word.device)


def _scale_and_signs(columns: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales [n, k] and signs [n, k, 4, 8] from k words of 4 x 7 bits of signs and 4 bits of scale."""
    word = words(columns, torch.int32)
    return ((word >> 28) & 15).float(), _signs_of_7(_shifted(word, 0, 7, 14, 21))


def _iq2_xxs(blocks: torch.Tensor) -> torch.Tensor:
    # d [2]; 8 sub-blocks of 32: indices [4], word of signs and scale [4]
    parts = blocks[:, 2:].reshape(-1, 8, 8)
    scale, signs = _scale_and_signs(parts[..., 4:].flatten(1))
    scale = half(blocks, 0) * (0.5 + scale) * 0.25
    return scale[..., None, None] * _entries("IQ2_XXS", parts[..., :4]) * signs


def _iq2_xs(blocks: torch.Tensor) -> torch.Tensor:
    # d [2], 32 words of 9 bits of index and 7 of signs [64], scale nibbles [8]; 16 sub-blocks of 16
    word = words(blocks[:, 2:66], torch.int16).int()
    scale = half(blocks, 0) * (0.5 + _nibbles(blocks[:, 66:]).float()) * 0.25
    values = _entries("IQ2_XS", word & 511) * _signs_of_7(word >> 9)
    return scale[..., None] * values.reshape(-1, 16, 16)


def _iq2_s(blocks: torch.Tensor) -> torch.Tensor:
    # d [2], low bits of indices [32], signs [32], high bit pairs [8], scale nibbles [8]; 16 sub-blocks of 16
    high = fields(blocks[:, 66:74, None], (0, 2, 4, 6), 3).flatten(1)
    scale = half(blocks, 0) * (0.5 + _nibbles(blocks[:, 74:]).float()) * 0.25
    values = _entries("IQ2_S", blocks[:, 2:34] | (high.int() << 8)) * _signs(blocks[:, 34:66])
    return scale[..., None] * values.reshape(-1, 16, 16)


def _iq3_xxs(blocks: torch.Tensor) -> torch.Tensor:
    # d [2], indices of 4 values [64], words of signs and scale [32]; 8 sub-blocks of 32
    scale, signs = _scale_and_signs(blocks[:, 66:])
    scale = half(blocks, 0) * (0.5 + scale) * 0.5
    values = _entries("IQ3_XXS", blocks[:, 2:66]).reshape(signs.shape)
    return scale[..., None, None] * values * signs


def _iq3_s(blocks: torch.Tensor) -> torch.Tensor:
    # d [2], low bits of indices of 4 values [64], high bits [8], signs [32], scale nibbles [4]; 8 sub-blocks of 32
    high = bits(blocks[:, 66:74]).flatten(1)
    scale = half(blocks, 0) * (1 + 2 * _nibbles(blocks[:, 106:]).float())
    values = _entries("IQ3_S", blocks[:, 2:66] | (high.int() << 8)).reshape(-1, 8, 32)
    return scale[..., None] * values * _signs(blocks[:, 74:106]).reshape(-1, 8, 32)


def _iq1_s(blocks: torch.Tensor) -> torch.Tensor:
    # d [2], low bits of indices [32], words [16]: 4 x 3 high bits, scale, sign of delta; 8 sub-blocks of 32
    word = words(blocks[:, 34:], torch.int16).int()
    high = _shifted(word, 0, 3, 6, 9) & 7
    values = _entries("IQ1_S", blocks[:, 2:34].reshape(-1, 8, 4) | (high << 8))
    delta = torch.where(word < 0, -_IQ1_DELTA, _IQ1_DELTA)
    scale = half(blocks, 0) * (2 * ((word >> 12) & 7) + 1).float()
    return scale[..., None, None] * (values + delta[..., None, None])


def _iq1_m(blocks: torch.Tensor) -> torch.Tensor:
    # low bits of indices [32], nibbles of high bits and sign of delta [16], 4 words [8]: 4 x 3 bits of scales, the
    # top nibbles of all four being d; 16 sub-blocks of 16
    word = words(blocks[:, 48:], torch.int16).int()
    nibbles = _nibbles(blocks[:, 32:48])
    values = _entries("IQ1_S", blocks[:, :32] | ((nibbles & 7).int() << 8))
    delta = torch.where(nibbles > 7, -_IQ1_DELTA, _IQ1_DELTA)
    scales = (2 * (_shifted(word, 0, 3, 6, 9) & 7) + 1).reshape(-1, 16).float()
    scale = _spread_half(word) * scales
    return scale[..., None] * (values + delta[..., None]).reshape(-1, 16, 16)


def _spread_half(word: torch.Tensor) -> torch.Tensor:
    """The half-precision number whose nibbles are the top ones of 4 words, the lowest first, [n, 4] -> [n, 1]."""
    top = ((word >> 12) & 15).to(torch.uint8)
    return half(top[:, ::2] | (top[:, 1::2] << 4), 0)


CODEBOOK_BLOCKS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "IQ3_S": _iq3_s,
    "IQ3_XXS": _iq3_xxs,
    "IQ2_S": _iq2_s,
    "IQ2_XS": _iq2_xs,
    "IQ2_XXS": _iq2_xxs,
    "IQ1_M": _iq1_m,
    "IQ1_S": _iq1_s,
}
