"""The product of one superblock: weights unpacked in registers as the matrix instruction's left operand.

A layout comes as the tuple that `constants` makes of it, so that Triton's cache knows each number in the machine code.
"""

from __future__ import annotations

import triton
import triton.language as tl

from glm5_vllm.experts.kernels.assembly import assembly, constraints
from glm5_vllm.experts.layouts import SHIFT, Layout

_SHIFT = tl.constexpr(SHIFT)
_WEIGHTS = tl.constexpr((tl.float16,) * 32)

Constants = tuple[int | str, ...]


def constants(layout: Layout) -> Constants:
    """What the kernels know of a layout; `multiply` and `words` take it apart."""
    return (
        layout.high_bits,
        layout.scale_words,
        int(layout.has_half_scales),
        int(layout.has_minima),
        *layout.sections,
        assembly(layout),
        constraints(layout),
    )


@triton.jit
def lanes(TILE_WORDS: tl.constexpr, TILES: tl.constexpr, WARPS: tl.constexpr):
    """Where the lanes of a program's tiles read: [256 * TILES] offsets of their tile, numbers in it and rows of it."""
    i = tl.arange(0, 256 * TILES)
    warp = (i // 32) % WARPS
    half = (i // (32 * WARPS)) % 2
    tile = (i // (64 * WARPS)) * (WARPS // 4) + warp // 4
    lane = half * 128 + (warp % 4) * 32 + i % 32
    row = half * 32 + (warp % 4) * 8 + (i % 32) // 4
    return tile * TILE_WORDS, lane, row


@triton.jit
def _joined8(a, b, c, d, e, f, g, h):
    return tl.join(tl.join(tl.join(a, b), tl.join(c, d)), tl.join(tl.join(e, f), tl.join(g, h)))


@triton.jit
def _four(words):
    """[n, 4] -> four of [n]."""
    even, odd = tl.split(tl.reshape(words, [words.shape[0], 2, 2]))
    a, c = tl.split(even)
    b, d = tl.split(odd)
    return a, b, c, d


@triton.jit
def _unpacked(operands, LAYOUT: tl.constexpr, TILES: tl.constexpr, WARPS: tl.constexpr):
    """The operands of the assembly, each [256 * TILES] -> float16 [64 * TILES, 128], times SHIFT."""
    y = tl.inline_asm_elementwise(LAYOUT[9], LAYOUT[10], operands, _WEIGHTS, True, 1)
    first = _joined8(y[0], y[1], y[2], y[3], y[4], y[5], y[6], y[7])
    second = _joined8(y[8], y[9], y[10], y[11], y[12], y[13], y[14], y[15])
    third = _joined8(y[16], y[17], y[18], y[19], y[20], y[21], y[22], y[23])
    fourth = _joined8(y[24], y[25], y[26], y[27], y[28], y[29], y[30], y[31])
    # lanes, then the eight weights as b, h, s, and the group's low and high bit
    a = tl.join(tl.join(first, second), tl.join(third, fourth))
    a = tl.reshape(a, [TILES * 4 // WARPS, 2, WARPS, 8, 4, 2, 2, 2, 2, 2])
    # rows: tile, warp, half of the rows, row; columns: group (high, low bit), s, h, lane of four, b
    a = tl.permute(a, 0, 2, 1, 3, 9, 8, 7, 6, 4, 5)
    return tl.reshape(a, [TILES * 64, 128])


@triton.jit
def _chunk(
    block,
    tile,
    lane,
    row,
    d,
    x0,
    x1,
    CHUNK: tl.constexpr,
    LAYOUT: tl.constexpr,
    TILES: tl.constexpr,
    WARPS: tl.constexpr,
):
    """Weights of a chunk, float16 [64 * TILES, 128], times SHIFT; x0 and x1 are its words of one or two high bits."""
    HIGH_BITS: tl.constexpr = LAYOUT[0]
    SCALE_WORDS: tl.constexpr = LAYOUT[1]
    HIGH: tl.constexpr = LAYOUT[4]
    SCALES: tl.constexpr = LAYOUT[5]
    low = (CHUNK * 1024 + tile + lane * 4)[:, None] + tl.arange(0, 4)[None, :]
    w0, w1, w2, w3 = _four(tl.load(block + low))
    s0 = tl.load(block + SCALES + CHUNK * 64 + tile + row)
    if SCALE_WORDS == 2:
        s1 = tl.load(block + SCALES + 128 + CHUNK * 64 + tile + row)
    if HIGH_BITS == 0:
        weights = _unpacked((w0, w1, w2, w3, s0, d), LAYOUT, TILES, WARPS)
    elif HIGH_BITS == 1:
        weights = _unpacked((w0, w1, w2, w3, x0, s0, d), LAYOUT, TILES, WARPS)
    elif HIGH_BITS == 2:
        weights = _unpacked((w0, w1, w2, w3, x0, x1, s0, s1, d), LAYOUT, TILES, WARPS)
    else:
        x0, x1, x2, x3 = _four(tl.load(block + HIGH + low))
        weights = _unpacked((w0, w1, w2, w3, x0, x1, x2, x3, s0, s1), LAYOUT, TILES, WARPS)
    return weights


@triton.jit
def _minima(
    block, d, TILE_WORDS: tl.constexpr, LAYOUT: tl.constexpr, TILES: tl.constexpr, WARPS: tl.constexpr
):
    """-SHIFT * dmin * minimum of the eight groups, float16 [64 * TILES, 16]: twice, for sums in two parts."""
    MINIMA: tl.constexpr = LAYOUT[6]
    dmin = ((d >> 16) & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True) * -_SHIFT
    dmin = tl.reshape(dmin, [TILES * 4 // WARPS, 2, 32 * WARPS])
    first, second = tl.split(tl.permute(dmin, 0, 2, 1))
    first = tl.reshape(first, [128 * TILES])
    second = tl.reshape(second, [128 * TILES])
    # one word has the minima of both of a lane's rows
    i = tl.arange(0, 128 * TILES)
    warp = (i // 32) % WARPS
    tile = ((i // (32 * WARPS)) * (WARPS // 4) + warp // 4) * TILE_WORDS
    m = tl.load(block + MINIMA + tile + (warp % 4) * 32 + i % 32)
    # no 8-bit tensor may feed the product: the compiler would choose an operand layout that 16 columns are too few for
    a = tl.join((m & 255).to(tl.float16) * first, ((m >> 8) & 255).to(tl.float16) * first)
    b = tl.join(((m >> 16) & 255).to(tl.float16) * second, ((m >> 24) & 255).to(tl.float16) * second)
    both = tl.join(a, b)
    both = tl.join(both, both)
    # tile, warp, row, lane of four, group, half of the rows, part
    both = tl.reshape(both, [TILES * 4 // WARPS, WARPS, 8, 4, 2, 2, 2])
    both = tl.permute(both, 0, 1, 5, 2, 6, 3, 4)
    return tl.reshape(both, [TILES * 64, 16])


@triton.jit
def multiply(
    acc,
    block,
    x0,
    x1,
    sums,
    tile,
    lane,
    row,
    TILE_WORDS: tl.constexpr,
    LAYOUT: tl.constexpr,
    TILES: tl.constexpr,
    WARPS: tl.constexpr,
):
    """acc [64 * TILES, columns] plus SHIFT times the weights of a superblock times both halves of x.

    `block` points to the superblock of the first tile; x0, x1 float16 [columns, 128]; sums float16 [columns, 16] are the
    sums of x over each group in two parts, and any number where the layout has no minima.
    """
    HIGH_BITS: tl.constexpr = LAYOUT[0]
    HALF_SCALES: tl.constexpr = LAYOUT[2]
    HAS_MINIMA: tl.constexpr = LAYOUT[3]
    HIGH: tl.constexpr = LAYOUT[4]
    D: tl.constexpr = LAYOUT[7]
    d = row
    a0 = row
    a1 = row
    b0 = row
    b1 = row
    if not HALF_SCALES:
        d = tl.load(block + D + tile + row)
    if HIGH_BITS == 1:
        a0, b0 = tl.split(tl.load(block + HIGH + (tile + lane * 2)[:, None] + tl.arange(0, 2)[None, :]))
    if HIGH_BITS == 2:
        a0, a1, b0, b1 = _four(tl.load(block + HIGH + (tile + lane * 4)[:, None] + tl.arange(0, 4)[None, :]))
    weights = _chunk(block, tile, lane, row, d, a0, a1, 0, LAYOUT, TILES, WARPS)
    acc = tl.dot(weights, tl.trans(x0), acc)
    weights = _chunk(block, tile, lane, row, d, b0, b1, 1, LAYOUT, TILES, WARPS)
    acc = tl.dot(weights, tl.trans(x1), acc)
    if HAS_MINIMA:
        acc = tl.dot(_minima(block, d, TILE_WORDS, LAYOUT, TILES, WARPS), tl.trans(sums), acc)
    return acc
