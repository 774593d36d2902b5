"""Packs raw GGUF blocks for the expert kernels, on the device they are on. layouts.py says into what.

The file's numbers stay as they are: no rounding happens here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from glm5_vllm.experts.layouts import LAYOUTS, SUPERBLOCK, TILE_ROWS, Layout
from glm5_vllm.gguf.errors import GGUFError
from glm5_vllm.gguf.file.quant_types import QuantType
from glm5_vllm.gguf.values.blocks import fields, words
from glm5_vllm.gguf.values.dequant import dequantize

# rows of weights packed at once: bounds the temporaries to a few hundred MB at 6144 columns
_ROWS_AT_ONCE = 1 << 13


@dataclass(frozen=True, slots=True)
class Blocks:
    """What n superblocks of 256 weights hold.

    `codes` uint8 [n, 256]; `scales` uint8 [n, 8 or 16], or the bits of half-precision numbers as int16 [n, 8];
    `minima` uint8 [n, 8] or None; `d` and `dmin` the bits of half-precision numbers as int16 [n] or None.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    minima: torch.Tensor | None = None
    d: torch.Tensor | None = None
    dmin: torch.Tensor | None = None


class OutOfRangeError(GGUFError):
    """Weights whose scales float16 does not hold: the kernels would give infinity for them."""


def can_pack(quant: QuantType, rows: int, columns: int, gate_and_up: bool) -> bool:
    """Whether the kernels take weights of this type and shape; `rows` counts gate and up together."""
    fits = rows % TILE_ROWS == 0 and columns % SUPERBLOCK == 0
    # a tile has 32 rows of gate and the same of up, and the product after it takes whole superblocks
    return quant in LAYOUTS and fits and (not gate_and_up or rows % (2 * SUPERBLOCK) == 0)


def pack(raw: torch.Tensor, quant: QuantType, *, gate_and_up: bool) -> torch.Tensor:
    """Pack the experts' weights of one product.

    Args:
        raw: uint8 [experts, rows, bytes of a row]; with `gate_and_up` the rows of gate stand before those of up.
        quant: their type, one of `LAYOUTS`.
        gate_and_up: put row i of gate and row i of up into one lane, for the product that joins them.

    Returns:
        int32 [experts, tiles, superblocks, words].

    Raises:
        OutOfRangeError: a scale or minimum is beyond what float16 holds; serve these weights by another kernel.
        GGUFError: the shape is not one of `can_pack`.
    """
    experts, rows, nbytes = raw.shape
    columns = nbytes // quant.block_bytes * quant.block_elements
    if not can_pack(quant, rows, columns, gate_and_up):
        raise GGUFError(
            f"{quant.name} experts of {rows} rows and {columns} columns to pack",
            f"{rows} x {columns}",
            expected=f"whole tiles of {TILE_ROWS} rows and {SUPERBLOCK} columns",
        )
    layout, superblocks = LAYOUTS[quant], columns // SUPERBLOCK
    shape = experts, rows // TILE_ROWS, superblocks, layout.words
    packed = torch.empty(shape, dtype=torch.int32, device=raw.device)
    step = max(1, _ROWS_AT_ONCE // rows)
    for start in range(0, experts, step):
        part = raw[start : start + step]
        blocks = _READERS[quant.name](
            part.reshape(-1, SUPERBLOCK // quant.block_elements * quant.block_bytes)
        )
        _check_range(blocks, layout, quant)
        packed[start : start + step] = _tiles(blocks, layout, (len(part), *shape[1:]), gate_and_up)
    return packed


def _check_range(blocks: Blocks, layout: Layout, quant: QuantType) -> None:
    scales = blocks.scales
    largest = _floats(scales) if layout.has_half_scales else (scales.float() - layout.scale_zero)
    if blocks.d is not None:
        largest = largest * _floats(blocks.d)[:, None] * layout.step
    _check("scale", largest, layout.largest_scale, quant)
    if blocks.minima is not None and blocks.dmin is not None:
        minima = blocks.minima.float() * _floats(blocks.dmin)[:, None]
        _check("minimum", minima, layout.largest_minimum, quant)


def _check(what: str, numbers: torch.Tensor, limit: float, quant: QuantType) -> None:
    # NaN is not below the limit
    if not bool((numbers.abs() < limit).all()):
        found = numbers.abs().nan_to_num(float("inf"), float("inf")).max().item()
        raise OutOfRangeError(
            f"largest {what} of {quant.name} experts", found, expected=f"less than {limit:g}"
        )


def _floats(of: torch.Tensor) -> torch.Tensor:
    return of.view(torch.float16).float()


# ---- from blocks to numbers: the offsets are those of dequant.py


def _half_bits(blocks: torch.Tensor, start: int) -> torch.Tensor:
    return words(blocks[:, start : start + 2], torch.int16)[:, 0]


def _scales_and_minima(packed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The 8 scales and 8 minima of 6 bits that Q4_K and Q5_K share 12 bytes for."""
    scale, minimum, mixed = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = torch.cat([scale & 63, (mixed & 15) | ((scale >> 6) << 4)], 1)
    return scales, torch.cat([minimum & 63, (mixed >> 4) | ((minimum >> 6) << 4)], 1)


def _affine(blocks: torch.Tensor, codes: torch.Tensor) -> Blocks:
    scales, minima = _scales_and_minima(blocks[:, 4:16])
    return Blocks(codes.flatten(1), scales, minima, _half_bits(blocks, 0), _half_bits(blocks, 2))


def _q4_k(blocks: torch.Tensor) -> Blocks:
    return _affine(blocks, fields(blocks[:, 16:].reshape(-1, 4, 32), (0, 4), 15))


def _q5_k(blocks: torch.Tensor) -> Blocks:
    low = fields(blocks[:, 48:].reshape(-1, 4, 32), (0, 4), 15).reshape(-1, 8, 32)
    return _affine(blocks, low | (fields(blocks[:, None, 16:48], tuple(range(8)), 1).reshape(-1, 8, 32) << 4))


def _q6_k(blocks: torch.Tensor) -> Blocks:
    low = fields(blocks[:, :128].reshape(-1, 2, 64), (0, 4), 15).flatten(1)
    high = fields(blocks[:, 128:192].reshape(-1, 2, 32), (0, 2, 4, 6), 3).flatten(1)
    # bytes of two's complement, moved up by 128
    return Blocks(low | (high << 4), blocks[:, 192:208] ^ 128, d=_half_bits(blocks, 208))


def _q8_0(blocks: torch.Tensor) -> Blocks:
    eight = blocks.reshape(-1, 8, 34)
    scales = words(eight[..., :2], torch.int16)[..., 0]
    return Blocks(eight[..., 2:].flatten(1) ^ 128, scales)


def _iq4_xs(blocks: torch.Tensor) -> Blocks:
    high = fields(blocks[:, 2:4, None], (0, 2, 4, 6), 3).reshape(-1, 8)
    low = fields(blocks[:, 4:8, None], (0, 4), 15).reshape(-1, 8)
    codes = fields(blocks[:, 8:].reshape(-1, 8, 16), (0, 4), 15).flatten(1)
    return Blocks(codes, low | (high << 4), d=_half_bits(blocks, 0))


def _codes_of_grid(blocks: torch.Tensor, scales: torch.Tensor, quant: QuantType) -> torch.Tensor:
    """The entry of `values` that each weight is: what the reference gives for d = 1 without its scale."""
    layout = LAYOUTS[quant]
    of_one = blocks.clone()
    of_one[:, 0], of_one[:, 1] = 0x00, 0x3C
    weights = dequantize(of_one, quant, (len(blocks), 8, 32)) / (scales.float() * layout.step)[..., None]
    levels = torch.tensor(layout.values[:8], dtype=torch.float32, device=blocks.device)
    level = torch.searchsorted(levels, weights.abs() - 0.5).to(torch.uint8)
    return (level | ((weights < 0).to(torch.uint8) << 3)).flatten(1)


def _iq3_s(blocks: torch.Tensor) -> Blocks:
    scales = 1 + 2 * fields(blocks[:, 106:, None], (0, 4), 15).reshape(-1, 8)
    codes = _codes_of_grid(blocks, scales, _BY_NAME["IQ3_S"])
    return Blocks(codes, scales, d=_half_bits(blocks, 0))


def _iq3_xxs(blocks: torch.Tensor) -> Blocks:
    scales = 1 + 2 * (blocks[:, 69::4] >> 4)
    codes = _codes_of_grid(blocks, scales, _BY_NAME["IQ3_XXS"])
    return Blocks(codes, scales, d=_half_bits(blocks, 0))


_BY_NAME = {quant.name: quant for quant in LAYOUTS}
_READERS: dict[str, Callable[[torch.Tensor], Blocks]] = {
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "Q8_0": _q8_0,
    "IQ4_XS": _iq4_xs,
    "IQ3_S": _iq3_s,
    "IQ3_XXS": _iq3_xxs,
}


# ---- from numbers to tiles


def _tiles(blocks: Blocks, layout: Layout, shape: tuple[int, ...], gate_and_up: bool) -> torch.Tensor:
    """int32 [experts, tiles, superblocks, words] of blocks in the file's order."""
    experts, tiles, superblocks, _ = shape

    def in_tiles(of: torch.Tensor) -> torch.Tensor:
        """[n, ...] -> [experts, tiles, superblocks, 2, 4, 8, ...]: a lane's two rows, warp, row of the warp."""
        rest = of.shape[1:]
        last = tuple(range(6, 6 + len(rest)))
        if gate_and_up:
            of = of.reshape(experts, 2, tiles, 4, 8, superblocks, *rest)
            return of.permute(0, 2, 5, 1, 3, 4, *last)
        of = of.reshape(experts, tiles, 4, 2, 8, superblocks, *rest)
        return of.permute(0, 1, 5, 3, 2, 4, *last)

    # columns: chunk, group, half of the group (s), half of that (h), lane of four (c), neighbours (b)
    codes = in_tiles(blocks.codes.reshape(-1, 2, 4, 2, 2, 4, 2))
    # experts, tiles, superblocks | chunk, two rows, warp, row, lane, group | s, h, b
    codes = codes.permute(0, 1, 2, 6, 3, 4, 5, 10, 7, 8, 9, 11).contiguous()
    sections = [*_code_words(codes, layout), *_scale_words(in_tiles(blocks.scales), layout)]
    if blocks.minima is not None:
        # groups 2c and 2c + 1 of a lane's two rows
        minima = in_tiles(blocks.minima.reshape(-1, 4, 2)).permute(0, 1, 2, 4, 5, 6, 3, 7)
        sections.append(_as_words(minima))
    if blocks.d is not None:
        dmin = torch.zeros_like(blocks.d) if blocks.dmin is None else blocks.dmin
        sections.append(_as_words(in_tiles(torch.stack([blocks.d, dmin], -1))))
    return torch.cat([section.reshape(experts, tiles, superblocks, -1) for section in sections], -1)


def _as_words(of: torch.Tensor) -> torch.Tensor:
    """Bytes or halves whose last dimensions fill words -> int32, [3 kept, words]."""
    return of.contiguous().flatten(3).view(torch.int32)


def _scale_words(scales: torch.Tensor, layout: Layout) -> list[torch.Tensor]:
    """scales [3, two rows, warp, row, 8 or 16] -> words [3, word of the chunk, chunk, rows]."""
    # groups of a chunk in one word; or two words of two halves; or two words, one for each 16 columns of every group
    if layout.scales_a_group == 2:
        split = scales.unflatten(-1, (2, 4, 2)).permute(0, 1, 2, 8, 6, 3, 4, 5, 7)
    else:
        split = scales.unflatten(-1, (2, layout.scale_words, -1)).permute(0, 1, 2, 7, 6, 3, 4, 5, 8)
    return [_as_words(split)]


def _code_words(codes: torch.Tensor, layout: Layout) -> list[torch.Tensor]:
    """codes uint8 [3, chunk, two rows, warp, row, lane, group, s, h, b] -> the low and high sections."""
    flat = codes.flatten(-3)
    if layout.high_bits == 4:
        low, high = flat.unflatten(-1, (2, 4)).unbind(-2)
        return [_as_words(low), _as_words(high)]
    places = [4 * (2 * s + h) + 16 * b for s in (0, 1) for h in (0, 1) for b in (0, 1)]
    low = _gathered(flat & 15, places if layout.is_interleaved else list(range(0, 32, 4)))
    if not layout.high_bits:
        return [low]
    # groups that share a word stand side by side, in the nibbles of their low bits
    sharing = 4 // layout.high_bits
    high = (flat >> 4).unflatten(-2, (-1, sharing)).flatten(-2)
    words_of_chunk = _gathered(
        high, [layout.high_bits * i + place for i in range(sharing) for place in places]
    )
    # [3, chunk, lanes..., word] -> [3, lanes..., chunk, word]
    return [low, words_of_chunk.movedim(3, -2)]


def _gathered(codes: torch.Tensor, places: list[int]) -> torch.Tensor:
    """The last dimension's codes or-ed into one word, each at its bit."""
    word = torch.zeros(codes.shape[:-1], dtype=torch.int32, device=codes.device)
    for index, place in enumerate(places):
        word |= codes[..., index].int() << place
    return word
