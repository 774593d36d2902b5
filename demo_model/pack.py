"""Packs float32 rows into GGUF quant blocks: the inverse of the reference dequantisation.

Used to build the demo model and every test file; serving never packs. gguf-py can only read the K-quants, so
Q4_K, Q5_K and Q6_K are packed here, every other type by gguf-py. Next hop: gguf.GGUFWriter.add_tensor.
"""

from collections.abc import Callable
from typing import Final

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import quantize as quantize_with_gguf_py
from numpy.typing import NDArray

F32 = NDArray[np.float32]
U8 = NDArray[np.uint8]

SUPER_BLOCK: Final = 256
# blocks packed at once: keeps each temporary of the scale search at 4 MiB
BLOCKS_PER_CHUNK: Final = 4096
# steps tried, as levels added to what the range needs: more levels clip outliers in favour of the rest. On
# normal values these 15 leave an error of 0.071/0.036/0.017 (Q4_K/Q5_K/Q6_K) where the plain min/max step
# leaves 0.078/0.038/0.019; trying more gains nothing
STEP_OFFSETS: Final = tuple(np.arange(-1.2, 3.3, 0.3).tolist())


def quantize(x: NDArray[np.floating], qtype: GGMLQuantizationType) -> U8:
    """Rows of `x` [..., row] as packed bytes [..., row / block * bytes per block].

    Raises ValueError for a row that is not a whole number of blocks, a value that is not finite, and a type
    that can only be read.
    """
    block, block_bytes = GGML_QUANT_SIZES[qtype]
    row = x.shape[-1] if x.ndim else 0
    if row == 0 or row % block:
        raise ValueError(
            f"cannot pack rows of {row} values as {qtype.name}; expected a multiple of {block}. "
            f"Choose a type with a smaller block, such as Q8_0 or F16."
        )
    values = np.ascontiguousarray(x, dtype=np.float32)
    if not np.isfinite(values).all():
        raise ValueError(f"cannot pack a tensor of {x.shape} as {qtype.name}; expected finite values only.")
    pack_blocks = _PACKERS.get(qtype)
    if pack_blocks is None:
        return _pack_with_gguf_py(values, qtype)
    blocks = values.reshape(-1, block)
    packed = np.empty((len(blocks), block_bytes), np.uint8)
    for start in range(0, len(blocks), BLOCKS_PER_CHUNK):
        part = slice(start, start + BLOCKS_PER_CHUNK)
        packed[part] = pack_blocks(blocks[part])
    return packed.reshape(*x.shape[:-1], row // block * block_bytes)


def _pack_with_gguf_py(values: F32, qtype: GGMLQuantizationType) -> U8:
    try:
        packed = quantize_with_gguf_py(values, qtype)
    except NotImplementedError as error:
        writable = ", ".join(t.name for t in _PACKERS)
        raise ValueError(
            f"cannot pack as {qtype.name}; expected one of {writable} or a type that gguf-py can write."
        ) from error
    return np.ascontiguousarray(packed).view(np.uint8)


def _divide(numerator: F32, denominator: F32) -> F32:
    """numerator / denominator, 0 where the denominator is 0."""
    shape = np.broadcast_shapes(numerator.shape, denominator.shape)
    return np.divide(numerator, denominator, out=np.zeros(shape, np.float32), where=denominator != 0)


def _half(x: F32) -> tuple[F32, U8]:
    """`x` [blocks] rounded to float16: as float32, and as its two bytes [blocks, 2]."""
    with np.errstate(over="ignore"):
        half = x.astype(np.float16)
    if not np.isfinite(half).all():
        raise ValueError(f"cannot pack a block scale of {np.abs(x).max():.4g}; expected at most 65504.")
    return half.astype(np.float32), half.view(np.uint8).reshape(-1, 2)


def _fit_affine(x: F32, top: int) -> tuple[F32, F32]:
    """Step and minimum [..., 1], both >= 0, that make `step * q - minimum` closest to `x` for q in 0..top.

    Each candidate step gives levels q; least squares over these q gives the step and minimum to be compared.
    """
    low = np.minimum(x.min(-1, keepdims=True), 0)
    width = x.max(-1, keepdims=True) - low
    best_step, best_minimum = width / top, -low
    best_error = np.full(low.shape, np.inf, np.float32)
    count, sum_x = x.shape[-1], x.sum(-1, keepdims=True)
    for offset in STEP_OFFSETS:
        q = np.clip(np.rint(_divide((x - low) * (top + offset), width)), 0, top)
        sum_q, sum_qq = q.sum(-1, keepdims=True), (q * q).sum(-1, keepdims=True)
        sum_xq = (x * q).sum(-1, keepdims=True)
        step = _divide(count * sum_xq - sum_q * sum_x, count * sum_qq - sum_q * sum_q)
        minimum = (step * sum_q - sum_x) / count
        through_zero = minimum < 0
        step = np.where(through_zero, _divide(sum_xq, sum_qq), step)
        minimum = np.where(through_zero, 0, minimum)
        error = np.square(x - step * q + minimum).sum(-1, keepdims=True)
        better = (error < best_error) & (step >= 0)
        best_error = np.where(better, error, best_error)
        best_step, best_minimum = np.where(better, step, best_step), np.where(better, minimum, best_minimum)
    return best_step, best_minimum


def _pack_affine(blocks: F32, bits: int) -> U8:
    """Blocks [n, 256] as Q4_K [n, 144] (bits 4) or Q5_K [n, 176] (bits 5).

    x = d * scale * q - dmin * minimum, in 8 sub-blocks of 32 with a 6-bit scale and minimum each.
    """
    top = (1 << bits) - 1
    x = blocks.reshape(-1, 8, 32)
    step, minimum = _fit_affine(x, top)
    d, d_bytes = _half(step.max((1, 2)) / 63)
    dmin, dmin_bytes = _half(minimum.max((1, 2)) / 63)
    d, dmin = d[:, None, None], dmin[:, None, None]
    scale6 = np.clip(np.rint(_divide(step, d)), 0, 63)
    min6 = np.clip(np.rint(_divide(minimum, dmin)), 0, 63)
    q = np.clip(np.rint(_divide(x + dmin * min6, d * scale6)), 0, top).astype(np.uint8)
    pairs = (q & 15).reshape(-1, 4, 2, 32)
    nibbles = (pairs[:, :, 0] | pairs[:, :, 1] << 4).reshape(-1, 128)
    scales = _scales_of_6_bits(scale6[..., 0].astype(np.uint8), min6[..., 0].astype(np.uint8))
    head = [d_bytes, dmin_bytes, scales]
    if bits == 5:
        # bit i of byte j is the fifth bit of value j in sub-block i
        head.append(np.packbits(q >> 4, axis=1, bitorder="little").reshape(-1, 32))
    return np.concatenate([*head, nibbles], axis=1)


def _scales_of_6_bits(scale: U8, minimum: U8) -> U8:
    """8 scales and 8 minima [n, 8] of 6 bits in 12 bytes: the first four of each whole, with the top two bits
    of the last four above them; then the low four bits of the last four, scale low and minimum high."""
    first, last = slice(0, 4), slice(4, 8)
    return np.concatenate(
        [
            scale[:, first] | scale[:, last] >> 4 << 6,
            minimum[:, first] | minimum[:, last] >> 4 << 6,
            scale[:, last] & 15 | (minimum[:, last] & 15) << 4,
        ],
        axis=1,
    )


def _fit_symmetric(x: F32) -> F32:
    """Step [..., 1], of either sign, that makes `step * q` closest to `x` for q in -32..31."""
    # the largest value takes level -32, the side that has one level more
    at = np.abs(x).argmax(-1, keepdims=True)
    peak = np.take_along_axis(x, at, -1)
    best_step = peak / np.float32(-32)
    best_error = np.full(peak.shape, np.inf, np.float32)
    for offset in STEP_OFFSETS:
        q = np.clip(np.rint(_divide(x * -(32 + offset), peak)), -32, 31)
        step = _divide((x * q).sum(-1, keepdims=True), (q * q).sum(-1, keepdims=True))
        error = np.square(x - step * q).sum(-1, keepdims=True)
        better = error < best_error
        best_error, best_step = np.where(better, error, best_error), np.where(better, step, best_step)
    return best_step


def _pack_symmetric(blocks: F32) -> U8:
    """Blocks [n, 256] as Q6_K [n, 210].

    x = d * scale * q, in 16 sub-blocks of 16 with a signed 8-bit scale each.
    """
    x = blocks.reshape(-1, 16, 16)
    step = _fit_symmetric(x)
    at = np.abs(step).argmax(1, keepdims=True)
    # signed: the largest step takes scale -128, the side that has one level more
    d, d_bytes = _half(np.take_along_axis(step, at, 1)[:, 0, 0] / np.float32(-128))
    d = d[:, None, None]
    scale = np.clip(np.rint(_divide(step, d)), -128, 127)
    levels = np.clip(np.rint(_divide(x, d * scale)), -32, 31) + 32
    # half of the block, quarter of the half, value
    q = levels.astype(np.uint8).reshape(-1, 2, 4, 32)
    low = (q[:, :, :2] & 15) | (q[:, :, 2:] & 15) << 4
    high = q >> 4
    high = high[:, :, 0] | high[:, :, 1] << 2 | high[:, :, 2] << 4 | high[:, :, 3] << 6
    scales = scale[..., 0].astype(np.int8).view(np.uint8)
    return np.concatenate([low.reshape(-1, 128), high.reshape(-1, 64), scales, d_bytes], axis=1)


_PACKERS: Final[dict[GGMLQuantizationType, Callable[[F32], U8]]] = {
    GGMLQuantizationType.Q4_K: lambda blocks: _pack_affine(blocks, 4),
    GGMLQuantizationType.Q5_K: lambda blocks: _pack_affine(blocks, 5),
    GGMLQuantizationType.Q6_K: _pack_symmetric,
}
