"""What the attention kernels share: which part a program takes, and how a row's splits become one; no vLLM."""

from __future__ import annotations

import triton
import triton.language as tl

# a finite stand-in for -inf: differences of two of them are 0 and never NaN
NOTHING = tl.constexpr(-1.0e30)
LN2 = tl.constexpr(0.6931471805599453)
LATENT = tl.constexpr(512)
ROPE = tl.constexpr(64)
# integer arguments of which no value deserves a compilation of its own
UNSPECIALIZED = ["heads", "table_width", "table_row", "block_stride_rows", "kv_row"]


@triton.jit
def _write_slots(
    p_position,
    p_slot,
    p_table,
    start,
    end,
    table_width,
    block_stride_rows,
    BLOCK_SIZE: tl.constexpr,
    BC: tl.constexpr,
):
    """Turn the positions of one split into slots, BC at a time; a position outside the block table gives -1."""
    for i_chunk in tl.range(start, end, BC):
        o_column = i_chunk + tl.arange(0, BC)
        m_column = o_column < end
        position = tl.load(p_position + o_column, mask=m_column, other=-1)
        block = position // BLOCK_SIZE
        is_valid = (position >= 0) & (block < table_width)
        physical = tl.load(p_table + block, mask=is_valid, other=0)
        slot = tl.where(is_valid, physical * block_stride_rows + position % BLOCK_SIZE, -1)
        tl.store(p_slot + o_column, slot, mask=m_column)


@triton.jit
def part_of_program(
    index,
    counts,
    block_table,
    request_of_row,
    slots,
    heads,
    width,
    table_width,
    block_stride_rows,
    index_row,
    table_row,
    BLOCK_SIZE: tl.constexpr,
    SPLITS: tl.constexpr,
    BH: tl.constexpr,
    BN: tl.constexpr,
    BC: tl.constexpr,
):
    """What a program computes: row, split, block of BH heads; pointer to the row's slots, first and last column.

    program_id(0) = (row * SPLITS + split) * head_blocks + head_block: head blocks fastest, so that they share the
    gathered rows in L2. Positions are turned into slots first. Splits are cut by the width, never by the count: the same
    row gives the same bits in any batch.
    """
    head_blocks = tl.cdiv(heads, BH)
    i_program = tl.program_id(0)
    i_head_block = i_program % head_blocks
    i_split = (i_program // head_blocks) % SPLITS
    i_row = (i_program // (head_blocks * SPLITS)).to(tl.int64)
    tiles_of_split = tl.cdiv(tl.cdiv(width, BN), SPLITS)
    start = i_split * tiles_of_split * BN
    end = tl.minimum(start + tiles_of_split * BN, width)
    p_index = index + i_row * index_row
    if BLOCK_SIZE > 0:
        p_slot = slots + i_row * width
        p_table = block_table + tl.load(request_of_row + i_row).to(tl.int64) * table_row
        _write_slots(p_index, p_slot, p_table, start, end, table_width, block_stride_rows, BLOCK_SIZE, BC)
        # head blocks write the same values, so each needs to wait for itself alone
        tl.debug_barrier()
        p_index = p_slot
    else:
        end = tl.minimum(end, tl.load(counts + i_row))
    return i_row, i_split, i_head_block, p_index, start, end


@triton.jit
def store_part(
    out,
    lse,
    part_out,
    part_lse,
    b_out,
    b_lse,
    i_row,
    i_split,
    heads,
    o_head,
    o_head_of_out,
    o_latent,
    SPLITS: tl.constexpr,
):
    """Write a program's output and lse [BH] (base 2): finished where a row has one split, else for merge_kernel.

    o_head_of_out and o_latent, head and column of each output, have shapes that broadcast to b_out's.
    """
    m_head = o_head < heads
    m_out = o_head_of_out < heads
    if SPLITS == 1:
        first = i_row * heads
        p_out = out + (first + o_head_of_out) * LATENT + o_latent
        tl.store(p_out, b_out.to(out.dtype.element_ty), mask=m_out)
        tl.store(lse + (first + o_head), b_lse * LN2, mask=m_head)
    else:
        first = (i_row * SPLITS + i_split) * heads
        tl.store(part_out + (first + o_head_of_out) * LATENT + o_latent, b_out, mask=m_out)
        tl.store(part_lse + (first + o_head), b_lse, mask=m_head)


@triton.jit(do_not_specialize=["heads"])
def merge_kernel(
    part_out, part_lse, out, lse, heads, SPLITS: tl.constexpr, BD: tl.constexpr, PDL: tl.constexpr
):
    """Weighted sum of the splits of one row and head, in the order of the splits.

    Grid: program_id(0) = row * heads + head, program_id(1) = block of BD output columns. part_out
    [rows, SPLITS, heads, 512] and part_lse [rows, SPLITS, heads] (base 2) -> out [rows, heads, 512], lse
    [rows, heads] (natural logarithm).
    """
    if PDL:
        # launched while the attention kernel still runs: nothing may be read before it has ended
        tl.extra.cuda.gdc_wait()
    i_out = tl.program_id(0).to(tl.int64)
    o_column = tl.program_id(1) * BD + tl.arange(0, BD)
    o_part = (i_out // heads * SPLITS + tl.arange(0, SPLITS)) * heads + i_out % heads
    # [SPLITS] and [SPLITS, BD]
    b_lse = tl.load(part_lse + o_part)
    b_part = tl.load(part_out + o_part[:, None] * LATENT + o_column[None, :])
    b_max = tl.max(b_lse, 0)
    b_max = tl.where(b_max == -float("inf"), 0.0, b_max)
    b_weight = tl.exp2(b_lse - b_max)
    b_sum = tl.sum(b_weight, 0)
    b_divisor = tl.where(b_sum > 0, b_sum, 1.0)
    b_out = tl.sum(b_part * b_weight[:, None], 0) / b_divisor
    tl.store(out + i_out * LATENT + o_column, b_out.to(out.dtype.element_ty))
    if tl.program_id(1) == 0:
        b_total = tl.where(b_sum > 0, b_max + tl.log2(b_divisor), -float("inf"))
        tl.store(lse + i_out, b_total * LN2)
