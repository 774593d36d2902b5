"""The two products of routed experts and what stands around them; never imports vLLM.

Weights are the left operand and tokens the right one: a program has 64 rows of weights a tile and a block of pairs (a
pair is a token and one of its experts). products are of float16 with float32 sums; the intermediate activations are kept
times `INTERMEDIATE`, for silu(gate) * up reaches further than float16.
"""

from __future__ import annotations

import triton
import triton.language as tl

from glm5_vllm.experts.kernels.weights import lanes, multiply
from glm5_vllm.experts.layouts import SHIFT

_SHIFT = tl.constexpr(SHIFT)
_INTERMEDIATE = tl.constexpr(1 / 16)


@triton.jit
def _two_parts(sums):
    """A float32 number as the sum of two float16 ones."""
    first = sums.to(tl.float16)
    return first, (sums - first.to(tl.float32)).to(tl.float16)


@triton.jit
def _activated(gate, up):
    return (gate * tl.sigmoid(gate) * up * _INTERMEDIATE).to(tl.float16)


@triton.jit
def prepare_kernel(x, halves, sums, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
    """x [rows, COLUMNS] -> float16, and the sums of each group of 32 columns in two parts, [rows, superblocks, 16]."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < COLUMNS
    value = tl.load(x + row * COLUMNS + column, mask=inside, other=0.0).to(tl.float16)
    tl.store(halves + row * COLUMNS + column, value, mask=inside)
    first, second = _two_parts(tl.sum(tl.reshape(value.to(tl.float32), [BLOCK // 32, 32]), 1))
    group = tl.program_id(1) * (BLOCK // 32) + tl.arange(0, BLOCK // 32)
    place = sums + row * (COLUMNS // 16) + (group // 8) * 16 + group % 8
    tl.store(place, first, mask=group < COLUMNS // 32)
    tl.store(place + 8, second, mask=group < COLUMNS // 32)


@triton.jit
def _block_of(ids, order, blocks, block_count, m, experts, BM: tl.constexpr, SORTED: tl.constexpr):
    """Expert of block m, the pairs of its columns and which columns have one; expert -1 where there is nothing to do.

    Without sorting, each pair is a block by itself.
    """
    column = tl.arange(0, BM)
    if SORTED:
        exists = m < tl.load(block_count)
        expert = tl.load(blocks + 3 * m, mask=exists, other=-1)
        first = tl.load(blocks + 3 * m + 1, mask=exists, other=0)
        valid = column < tl.load(blocks + 3 * m + 2, mask=exists, other=0)
        pair = tl.load(order + first + column, mask=valid, other=0)
    else:
        expert = tl.load(ids + m)
        expert = tl.where((expert >= 0) & (expert < experts), expert, -1)
        valid = column == 0
        pair = tl.where(valid, m, 0)
    return expert, pair, valid


@triton.jit(do_not_specialize=["pairs", "experts"])
def gate_up_kernel(
    halves,
    sums,
    packed,
    ids,
    order,
    blocks,
    block_count,
    out,
    out_sums,
    parts,
    pairs,
    experts,
    COLUMNS: tl.constexpr,
    INTERMEDIATE: tl.constexpr,
    TOPK: tl.constexpr,
    LAYOUT: tl.constexpr,
    BM: tl.constexpr,
    TILES: tl.constexpr,
    WARPS: tl.constexpr,
    STAGES: tl.constexpr,
    SPLITS: tl.constexpr,
    SORTED: tl.constexpr,
):
    """silu(gate) * up of each pair, float16 [pairs, INTERMEDIATE], and its sums of groups as `prepare_kernel` has them.

    With SPLITS the superblocks are shared by as many programs, and each writes its gate and up to parts float32
    [SPLITS, pairs, 2, INTERMEDIATE] for `activate_kernel`.
    """
    SUPERBLOCKS: tl.constexpr = COLUMNS // 256
    WORDS: tl.constexpr = LAYOUT[8]
    ACROSS: tl.constexpr = INTERMEDIATE // 32 // TILES
    n = tl.program_id(0) % ACROSS
    m = tl.program_id(0) // ACROSS
    split = tl.program_id(1)
    expert, pair, valid = _block_of(ids, order, blocks, block_count, m, experts, BM, SORTED)
    if expert < 0:
        return
    token = pair // TOPK
    tile, lane, row = lanes(SUPERBLOCKS * WORDS, TILES, WARPS)
    first = split * (SUPERBLOCKS // SPLITS)
    start = (expert.to(tl.int64) * (INTERMEDIATE // 32) + n * TILES) * SUPERBLOCKS + first
    block = packed + start * WORDS
    x = halves + (token.to(tl.int64) * COLUMNS)[:, None] + first * 256 + tl.arange(0, 128)[None, :]
    s = sums + (token * (SUPERBLOCKS * 16))[:, None] + first * 16 + tl.arange(0, 16)[None, :]
    acc = tl.zeros([64 * TILES, BM], tl.float32)
    for _ in tl.range(0, SUPERBLOCKS // SPLITS, num_stages=STAGES):
        x0 = tl.load(x, mask=valid[:, None], other=0.0)
        x1 = tl.load(x + 128, mask=valid[:, None], other=0.0)
        group_sums = tl.load(s, mask=valid[:, None], other=0.0)
        acc = multiply(
            acc, block, x0, x1, group_sums, tile, lane, row, SUPERBLOCKS * WORDS, LAYOUT, TILES, WARPS
        )
        block += WORDS
        x += 256
        s += 16
    # a lane's rows are gate in the lower half of 16 and up in the upper one
    acc = tl.reshape(acc * (1.0 / _SHIFT), [4 * TILES, 2, 8, BM])
    gate, up = tl.split(tl.permute(acc, 0, 2, 3, 1))
    gate = tl.reshape(gate, [32 * TILES, BM])
    up = tl.reshape(up, [32 * TILES, BM])
    column = n * (32 * TILES) + tl.arange(0, 32 * TILES)
    if SPLITS > 1:
        part = parts + ((split * pairs + pair) * (2 * INTERMEDIATE))[None, :] + column[:, None]
        tl.store(part, gate, mask=valid[None, :])
        tl.store(part + INTERMEDIATE, up, mask=valid[None, :])
    else:
        hidden = _activated(gate, up)
        a, b = _two_parts(tl.sum(tl.reshape(hidden.to(tl.float32), [TILES, 32, BM]), 1))
        group = n * TILES + tl.arange(0, TILES)
        place = out_sums + (pair * (INTERMEDIATE // 16))[None, :] + ((group // 8) * 16 + group % 8)[:, None]
        tl.store(place, a, mask=valid[None, :])
        tl.store(place + 8, b, mask=valid[None, :])
        row_of = out + (pair.to(tl.int64) * INTERMEDIATE)[:, None]
        tl.store(row_of + column[None, :], tl.trans(hidden), mask=valid[:, None])


@triton.jit(do_not_specialize=["pairs"])
def activate_kernel(parts, out, out_sums, pairs, INTERMEDIATE: tl.constexpr, SPLITS: tl.constexpr):
    """Joins the parts of gate and up: silu(gate) * up and its sums of groups, a superblock a program."""
    pair = tl.program_id(0)
    superblock = tl.program_id(1)
    column = superblock * 256 + tl.arange(0, 256)
    gate = tl.zeros([256], tl.float32)
    up = tl.zeros([256], tl.float32)
    for split in tl.static_range(SPLITS):
        part = parts + (split * pairs + pair) * (2 * INTERMEDIATE) + column
        gate += tl.load(part)
        up += tl.load(part + INTERMEDIATE)
    hidden = _activated(gate, up)
    a, b = _two_parts(tl.sum(tl.reshape(hidden.to(tl.float32), [8, 32]), 1))
    place = out_sums + pair * (INTERMEDIATE // 16) + superblock * 16 + tl.arange(0, 8)
    tl.store(place, a)
    tl.store(place + 8, b)
    tl.store(out + pair * INTERMEDIATE + column, hidden)


@triton.jit
def _intermediate(hidden, sums, pair, valid, superblock, INTERMEDIATE: tl.constexpr):
    """A superblock of the intermediate activations as `multiply` takes x."""
    column = superblock * 256 + tl.arange(0, 128)
    row = hidden + (pair.to(tl.int64) * INTERMEDIATE)[:, None] + column[None, :]
    x0 = tl.load(row, mask=valid[:, None], other=0.0)
    x1 = tl.load(row + 128, mask=valid[:, None], other=0.0)
    place = (pair * (INTERMEDIATE // 16))[:, None] + superblock * 16 + tl.arange(0, 16)[None, :]
    return x0, x1, tl.load(sums + place, mask=valid[:, None], other=0.0)


@triton.jit
def _store_outputs(out, acc, pair, valid, first, COLUMNS: tl.constexpr, TILES: tl.constexpr):
    value = tl.trans(acc * (1.0 / (_SHIFT * _INTERMEDIATE))).to(out.dtype.element_ty)
    place = (pair.to(tl.int64) * COLUMNS)[:, None] + first + tl.arange(0, 64 * TILES)[None, :]
    tl.store(out + place, value, mask=valid[:, None])


@triton.jit(do_not_specialize=["experts"])
def down_kernel(
    hidden,
    sums,
    packed,
    ids,
    order,
    blocks,
    block_count,
    out,
    experts,
    COLUMNS: tl.constexpr,
    INTERMEDIATE: tl.constexpr,
    LAYOUT: tl.constexpr,
    BM: tl.constexpr,
    TILES: tl.constexpr,
    WARPS: tl.constexpr,
    STAGES: tl.constexpr,
    STEPS: tl.constexpr,
    SORTED: tl.constexpr,
):
    """down of each pair's intermediate activations, [pairs, COLUMNS] in out's type.

    A program has STEPS times TILES tiles of rows. With one superblock of the activations it keeps that and loops over its
    rows; with more it loops over them.
    """
    SUPERBLOCKS: tl.constexpr = INTERMEDIATE // 256
    WORDS: tl.constexpr = LAYOUT[8]
    ACROSS: tl.constexpr = COLUMNS // 64 // TILES // STEPS
    n = tl.program_id(0) % ACROSS
    m = tl.program_id(0) // ACROSS
    expert, pair, valid = _block_of(ids, order, blocks, block_count, m, experts, BM, SORTED)
    if expert < 0:
        return
    tile, lane, row = lanes(SUPERBLOCKS * WORDS, TILES, WARPS)
    start = expert.to(tl.int64) * (COLUMNS // 64) + n * (TILES * STEPS)
    block = packed + start * (SUPERBLOCKS * WORDS)
    first = n * (TILES * STEPS * 64)
    if SUPERBLOCKS == 1:
        x0, x1, group_sums = _intermediate(hidden, sums, pair, valid, 0, INTERMEDIATE)
        for _ in tl.range(0, STEPS, num_stages=STAGES):
            acc = tl.zeros([64 * TILES, BM], tl.float32)
            acc = multiply(
                acc, block, x0, x1, group_sums, tile, lane, row, SUPERBLOCKS * WORDS, LAYOUT, TILES, WARPS
            )
            _store_outputs(out, acc, pair, valid, first, COLUMNS, TILES)
            block += TILES * WORDS
            first += 64 * TILES
    else:
        for _ in range(STEPS):
            acc = tl.zeros([64 * TILES, BM], tl.float32)
            for superblock in tl.range(0, SUPERBLOCKS, num_stages=STAGES):
                x0, x1, group_sums = _intermediate(hidden, sums, pair, valid, superblock, INTERMEDIATE)
                here = block + superblock * WORDS
                acc = multiply(
                    acc, here, x0, x1, group_sums, tile, lane, row, SUPERBLOCKS * WORDS, LAYOUT, TILES, WARPS
                )
            _store_outputs(out, acc, pair, valid, first, COLUMNS, TILES)
            block += TILES * SUPERBLOCKS * WORDS
            first += 64 * TILES


@triton.jit(do_not_specialize=["experts"])
def sum_kernel(
    of_pairs, ids, weights, out, experts, COLUMNS: tl.constexpr, TOPK: tl.constexpr, BLOCK: tl.constexpr
):
    """Each token's sum of weight times output, [rows, COLUMNS]; pairs without an expert count nothing."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < COLUMNS
    total = tl.zeros([BLOCK], tl.float32)
    for k in tl.static_range(TOPK):
        pair = row * TOPK + k
        expert = tl.load(ids + pair)
        is_valid = (expert >= 0) & (expert < experts)
        there = tl.where(is_valid, COLUMNS, 0)
        value = tl.load(of_pairs + pair * COLUMNS + column, mask=column < there, other=0.0).to(tl.float32)
        total += tl.where(is_valid, tl.load(weights + pair), 0.0) * value
    tl.store(out + row * COLUMNS + column, total.to(out.dtype.element_ty), mask=inside)
