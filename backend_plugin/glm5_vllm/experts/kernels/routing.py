"""Sorts pairs of token and expert by expert, in blocks of one expert each. The order is the same each time; no atomics.

A pair's place is the number of pairs of smaller experts, plus that of earlier pairs of its own. `order` lists the pairs
by place. Each block is (expert, first place, number of pairs); pairs without an expert have none.
"""

from __future__ import annotations

import triton
import triton.language as tl

# up to this many pairs one launch counts and places
COUNTED_ALONE = tl.constexpr(512)


@triton.jit
def _counts(ids, start, end, experts, BINS: tl.constexpr, SIZE: tl.constexpr):
    """How many of the pairs from start to before end each expert has, [BINS]."""
    pair = start + tl.arange(0, SIZE)
    expert = tl.load(ids + pair, mask=pair < end, other=-1)
    return tl.histogram(expert, BINS, mask=(expert >= 0) & (expert < experts))


@triton.jit(do_not_specialize=["pairs", "experts"])
def count_kernel(ids, counts, pairs, experts, BINS: tl.constexpr, CHUNK: tl.constexpr):
    """counts [chunks, BINS]: how many pairs of a chunk each expert has."""
    chunk = tl.program_id(0)
    found = _counts(ids, chunk * CHUNK, pairs, experts, BINS, CHUNK)
    tl.store(counts + chunk * BINS + tl.arange(0, BINS), found)


@triton.jit(do_not_specialize=["pairs", "experts"])
def place_kernel(
    ids,
    counts,
    order,
    blocks,
    block_count,
    pairs,
    experts,
    BINS: tl.constexpr,
    BM: tl.constexpr,
    CHUNK: tl.constexpr,
    STEP: tl.constexpr,
    COUNTED: tl.constexpr,
):
    """Places the pairs of one chunk, STEP at a time; without COUNTED it counts all the others' itself."""
    chunk = tl.program_id(0)
    bins = tl.arange(0, BINS)
    if COUNTED:
        total = tl.zeros([BINS], tl.int32)
        earlier = tl.zeros([BINS], tl.int32)
        for other in range(tl.num_programs(0)):
            found = tl.load(counts + other * BINS + bins)
            total += found
            earlier += tl.where(other < chunk, found, 0)
    else:
        total = _counts(ids, 0, pairs, experts, BINS, COUNTED_ALONE)
        earlier = _counts(ids, 0, tl.minimum(chunk * CHUNK, pairs), experts, BINS, COUNTED_ALONE)
    block_total = (total + BM - 1) // BM
    first_place = tl.cumsum(total, 0) - total
    first_block = tl.cumsum(block_total, 0) - block_total
    if chunk == 0:
        tl.store(block_count, tl.sum(block_total, 0))
    local = tl.arange(0, STEP)
    for step in range(CHUNK // STEP):
        pair = chunk * CHUNK + step * STEP + local
        expert = tl.load(ids + pair, mask=pair < pairs, other=-1)
        valid = (expert >= 0) & (expert < experts)
        mine = (expert[:, None] == bins[None, :]) & valid[:, None]
        before = (expert[:, None] == expert[None, :]) & (local[None, :] < local[:, None])
        rank = tl.sum(tl.where(mine, earlier[None, :], 0), 1) + tl.sum(before.to(tl.int32), 1)
        place = tl.sum(tl.where(mine, first_place[None, :], 0), 1) + rank
        tl.store(order + place, pair, mask=valid)
        opens = valid & (rank % BM == 0)
        block = tl.sum(tl.where(mine, first_block[None, :], 0), 1) + rank // BM
        left = tl.sum(tl.where(mine, total[None, :], 0), 1) - rank
        tl.store(blocks + 3 * block, expert, mask=opens)
        tl.store(blocks + 3 * block + 1, place, mask=opens)
        tl.store(blocks + 3 * block + 2, tl.minimum(left, BM), mask=opens)
        earlier += tl.sum(mine.to(tl.int32), 0)
