"""Triton kernels of sparse MLA over a virtual block table; never imports vLLM.

Owns the arithmetic on the device and nothing else: shapes are checked in launch.py, tiles are chosen in configs.py.
The math, the symbols and the numerics are described in ../README.md.
"""

from __future__ import annotations

import triton
import triton.language as tl

# a finite stand-in for -inf: differences of two of them are 0 and never NaN
_NOTHING = tl.constexpr(-1.0e30)
_LN2 = tl.constexpr(0.6931471805599453)
_LATENT = tl.constexpr(512)
_ROPE = tl.constexpr(64)
_GROUPS = tl.constexpr(4)  # fp8_ds_mla: one float32 scale for each 128 latent columns


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
def _load_tile(
    kv, p_index, kv_row, i_tile, end, DTYPE: tl.constexpr, BN: tl.constexpr, GROUPED: tl.constexpr
):
    """Raw KV rows of one tile: latent [BN, 512], scales [BN, 4] if grouped, rope [BN, 64], and which slots count.

    What does not count is never read, so NaN in an unused slot cannot pass.
    """
    o_slot = i_tile + tl.arange(0, BN)
    slot = tl.load(p_index + o_slot, mask=o_slot < end, other=-1)
    is_valid = slot >= 0
    m_row = is_valid[:, None]
    p_row = kv + slot.to(tl.int64) * kv_row
    b_latent = tl.load(p_row[:, None] + tl.arange(0, _LATENT)[None, :], mask=m_row, other=0.0)
    if GROUPED:
        # 512 fp8, four float32 scales of 128 columns each, 64 values in the activation's type
        p_scale = (p_row + _LATENT).to(tl.pointer_type(tl.float32), bitcast=True)
        p_rope = (p_row + _LATENT + 4 * _GROUPS).to(tl.pointer_type(DTYPE), bitcast=True)
        b_scale = tl.load(p_scale[:, None] + tl.arange(0, _GROUPS)[None, :], mask=m_row, other=0.0)
    else:
        p_rope = p_row + _LATENT
        b_scale = is_valid
    b_rope = tl.load(p_rope[:, None] + tl.arange(0, _ROPE)[None, :], mask=m_row, other=0.0)
    return b_latent, b_scale, b_rope, is_valid


@triton.jit
def _dequantized(
    latent, scale, rope, DTYPE: tl.constexpr, BN: tl.constexpr, IS_FP8: tl.constexpr, GROUPED: tl.constexpr
):
    """Latent [BN, 512] and rope [BN, 64] in the activation's type; fp8 through float32, which hardware does fast."""
    if GROUPED:
        # [BN, 4, 128]
        b_grouped = tl.reshape(latent.to(tl.float32), [BN, _GROUPS, _LATENT // _GROUPS]) * scale[:, :, None]
        return tl.reshape(b_grouped.to(DTYPE), [BN, _LATENT]), rope
    if IS_FP8:
        return latent.to(tl.float32).to(DTYPE), rope.to(tl.float32).to(DTYPE)
    return latent.to(DTYPE), rope.to(DTYPE)


@triton.jit
def _attend_tile(b_q_latent, b_q_rope, b_latent, b_rope, is_valid, b_max, b_sum, b_acc, score_scale):
    """One step of the running softmax (base 2) over a tile of BN slots."""
    # [BH, BN]
    b_score = tl.dot(b_q_latent, tl.trans(b_latent), input_precision="ieee")
    b_score = tl.dot(b_q_rope, tl.trans(b_rope), b_score, input_precision="ieee")
    b_score = tl.where(is_valid[None, :], b_score * score_scale, _NOTHING)
    b_new_max = tl.maximum(b_max, tl.max(b_score, 1))
    b_decay = tl.exp2(b_max - b_new_max)
    b_weight = tl.where(is_valid[None, :], tl.exp2(b_score - b_new_max[:, None]), 0.0)
    b_sum = b_sum * b_decay + tl.sum(b_weight, 1)
    b_acc = tl.dot(b_weight.to(b_latent.dtype), b_latent, b_acc * b_decay[:, None], input_precision="ieee")
    return b_new_max, b_sum, b_acc


@triton.jit(do_not_specialize=["heads", "table_width", "table_row", "block_stride_rows"])
def attend_kernel(  # noqa: PLR0915  one loop with its prologue and epilogue; parts of it would hide the flow
    q_latent,
    q_rope,
    kv,
    index,
    counts,
    block_table,
    request_of_row,
    slots,
    out,
    lse,
    part_out,
    part_lse,
    score_scale,
    value_scale,
    heads,
    width,
    table_width,
    block_stride_rows,
    q_latent_row,
    q_latent_head,
    q_rope_row,
    q_rope_head,
    kv_row,
    index_row,
    table_row,
    BLOCK_SIZE: tl.constexpr,
    IS_FP8: tl.constexpr,
    GROUPED: tl.constexpr,
    SPLITS: tl.constexpr,
    BH: tl.constexpr,
    BN: tl.constexpr,
    BC: tl.constexpr,
    STAGES: tl.constexpr,
    PDL: tl.constexpr,
):
    """Attention of one row and BH heads over one split of its slots.

    Grid: program_id(0) = (row * SPLITS + split) * head_blocks + head_block, head blocks fastest so that they share
    the gathered rows in L2. q_latent [rows, heads, 512], q_rope [rows, heads, 64], kv [slots, 576 or 656 bytes].
    BLOCK_SIZE 0: index [rows, width] holds slots, of which the first counts[row] may count. Otherwise it holds
    positions, which block_table [requests, table_width] turns into slots, kept in slots [rows, width]. With
    SPLITS > 1 part_out [rows, SPLITS, heads, 512] and part_lse (base 2) are written for merge_kernel, else out and
    lse. The caller guarantees that every slot that counts lies inside the cache.
    """
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    head_blocks = tl.cdiv(heads, BH)
    i_program = tl.program_id(0)
    i_head_block = i_program % head_blocks
    i_split = (i_program // head_blocks) % SPLITS
    i_row = (i_program // (head_blocks * SPLITS)).to(tl.int64)

    # splits are cut by the width, never by the count: the same row gives the same bits in any batch
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

    o_head = i_head_block * BH + tl.arange(0, BH)
    m_head = o_head < heads
    o_latent = tl.arange(0, _LATENT)
    # [BH, 512] and [BH, 64]
    p_q_latent = q_latent + i_row * q_latent_row + o_head[:, None].to(tl.int64) * q_latent_head
    p_q_rope = q_rope + i_row * q_rope_row + o_head[:, None].to(tl.int64) * q_rope_head
    b_q_latent = tl.load(p_q_latent + o_latent[None, :], mask=m_head[:, None], other=0.0)
    b_q_rope = tl.load(p_q_rope + tl.arange(0, _ROPE)[None, :], mask=m_head[:, None], other=0.0)

    b_max = tl.full([BH], _NOTHING, tl.float32)
    b_sum = tl.zeros([BH], tl.float32)
    b_acc = tl.zeros([BH, _LATENT], tl.float32)
    DTYPE: tl.constexpr = q_latent.dtype.element_ty
    if STAGES == 1:
        # an fp8 tile is small enough to wait in registers while the one before it is computed; the compiler's
        # pipeline leaves it out, because it has to be converted before the products
        latent, scale, rope, is_valid = _load_tile(kv, p_index, kv_row, start, end, DTYPE, BN, GROUPED)
        for i_tile in tl.range(start, end, BN, num_stages=1):
            next_latent, next_scale, next_rope, is_next_valid = _load_tile(
                kv, p_index, kv_row, i_tile + BN, end, DTYPE, BN, GROUPED
            )
            b_latent, b_rope = _dequantized(latent, scale, rope, DTYPE, BN, IS_FP8, GROUPED)
            b_max, b_sum, b_acc = _attend_tile(
                b_q_latent, b_q_rope, b_latent, b_rope, is_valid, b_max, b_sum, b_acc, score_scale
            )
            latent, scale, rope, is_valid = next_latent, next_scale, next_rope, is_next_valid
    else:
        for i_tile in tl.range(start, end, BN, num_stages=STAGES):
            latent, scale, rope, is_valid = _load_tile(kv, p_index, kv_row, i_tile, end, DTYPE, BN, GROUPED)
            b_latent, b_rope = _dequantized(latent, scale, rope, DTYPE, BN, IS_FP8, GROUPED)
            b_max, b_sum, b_acc = _attend_tile(
                b_q_latent, b_q_rope, b_latent, b_rope, is_valid, b_max, b_sum, b_acc, score_scale
            )

    b_divisor = tl.where(b_sum > 0, b_sum, 1.0)
    b_out = b_acc * (value_scale / b_divisor)[:, None]
    b_lse = tl.where(b_sum > 0, b_max + tl.log2(b_divisor), -float("inf"))
    if SPLITS == 1:
        o_out = i_row * heads + o_head
        p_out = out + o_out[:, None] * _LATENT + o_latent[None, :]
        tl.store(p_out, b_out.to(out.dtype.element_ty), mask=m_head[:, None])
        tl.store(lse + o_out, b_lse * _LN2, mask=m_head)
    else:
        o_part = (i_row * SPLITS + i_split) * heads + o_head
        tl.store(part_out + o_part[:, None] * _LATENT + o_latent[None, :], b_out, mask=m_head[:, None])
        tl.store(part_lse + o_part, b_lse, mask=m_head)


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
        # launched while attend_kernel still runs: nothing may be read before it has ended
        tl.extra.cuda.gdc_wait()
    i_out = tl.program_id(0).to(tl.int64)
    o_column = tl.program_id(1) * BD + tl.arange(0, BD)
    o_part = (i_out // heads * SPLITS + tl.arange(0, SPLITS)) * heads + i_out % heads
    # [SPLITS] and [SPLITS, BD]
    b_lse = tl.load(part_lse + o_part)
    b_part = tl.load(part_out + o_part[:, None] * _LATENT + o_column[None, :])
    b_max = tl.max(b_lse, 0)
    b_max = tl.where(b_max == -float("inf"), 0.0, b_max)
    b_weight = tl.exp2(b_lse - b_max)
    b_sum = tl.sum(b_weight, 0)
    b_divisor = tl.where(b_sum > 0, b_sum, 1.0)
    b_out = tl.sum(b_part * b_weight[:, None], 0) / b_divisor
    tl.store(out + i_out * _LATENT + o_column, b_out.to(out.dtype.element_ty))
    if tl.program_id(1) == 0:
        b_total = tl.where(b_sum > 0, b_max + tl.log2(b_divisor), -float("inf"))
        tl.store(lse + i_out, b_total * _LN2)
