"""Triton kernels of sparse MLA over a virtual block table; never imports vLLM.

Owns the arithmetic on the device and nothing else: shapes are checked in launch.py, tiles are chosen in configs.py.
The math, the symbols and the numerics are described in ../README.md.
"""

from __future__ import annotations

import triton
import triton.language as tl

from glm5_vllm.attention.kernels.fp8 import float16_values, power_of_two, scaled_float16_values

# a finite stand-in for -inf: differences of two of them are 0 and never NaN
_NOTHING = tl.constexpr(-1.0e30)
_LN2 = tl.constexpr(0.6931471805599453)
_LATENT = tl.constexpr(512)
_ROPE = tl.constexpr(64)
_GROUPS = tl.constexpr(4)  # fp8_ds_mla: one float32 scale for each 128 latent columns
_WORDS = tl.constexpr(512 // 4)  # of a latent of fp8 values


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
    kv,
    p_index,
    kv_row,
    i_tile,
    end,
    DTYPE: tl.constexpr,
    BN: tl.constexpr,
    IS_FP8: tl.constexpr,
    GROUPED: tl.constexpr,
):
    """Raw KV rows of one tile: latent [BN, 512], scales [BN, 4] if grouped, rope [BN, 64], and which slots count.

    fp8 values come as int32 words of four. What does not count is never read, so NaN in an unused slot cannot pass.
    """
    LATENT: tl.constexpr = _WORDS if IS_FP8 else _LATENT
    ROPE: tl.constexpr = _ROPE // 4 if IS_FP8 else _ROPE
    o_slot = i_tile + tl.arange(0, BN)
    slot = tl.load(p_index + o_slot, mask=o_slot < end, other=-1)
    is_valid = slot >= 0
    m_row = is_valid[:, None]
    # rows start at multiples of 16 bytes, and the compiler must see it
    p_row = kv + slot.to(tl.int64) * kv_row * (128 // kv.dtype.element_ty.primitive_bitwidth)
    b_latent = tl.load(p_row[:, None] + tl.arange(0, LATENT)[None, :], mask=m_row, other=0)
    if GROUPED:
        # 512 fp8, four float32 scales of 128 columns each, 64 values in the activation's type
        p_scale = (p_row + LATENT).to(tl.pointer_type(tl.float32), bitcast=True)
        p_rope = (p_row + LATENT + _GROUPS).to(tl.pointer_type(DTYPE), bitcast=True)
        b_scale = tl.load(p_scale[:, None] + tl.arange(0, _GROUPS)[None, :], mask=m_row, other=0)
        b_rope = tl.load(p_rope[:, None] + tl.arange(0, _ROPE)[None, :], mask=m_row, other=0)
    else:
        b_scale = is_valid
        p_rope = (p_row + LATENT)[:, None] + tl.arange(0, ROPE)[None, :]
        b_rope = tl.load(p_rope, mask=m_row, other=0)
    return b_latent, b_scale, b_rope, is_valid


@triton.jit
def _operands(
    latent,
    scale,
    rope,
    DTYPE: tl.constexpr,
    BN: tl.constexpr,
    IS_FP8: tl.constexpr,
    GROUPED: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """Latent [BN, 512] and rope [BN, 64] as the products take them, and the factor [BN] that a latent lacks.

    The largest scale of a grouped row would not always fit float16, so its power of two stays out of the latent: it
    goes onto the score, and as an exponent (base 2) onto the softmax weight.
    """
    factor = tl.full([BN], 1.0, tl.float32)
    exponent = tl.zeros([BN], tl.float32)
    if GROUPED:
        factor, inverse, exponent = power_of_two(tl.max(scale, 1))
        b_scale = scale * inverse[:, None]
        b_latent = scaled_float16_values(latent, b_scale, BN, _LATENT, _GROUPS, INTERPRETED)
        b_rope = rope
    elif IS_FP8:
        b_latent = float16_values(latent, BN, _LATENT, INTERPRETED)
        b_rope = float16_values(rope, BN, _ROPE, INTERPRETED)
    else:
        b_latent = latent.to(DTYPE)
        b_rope = rope.to(DTYPE)
    return b_latent, b_rope, factor, exponent


@triton.jit
def _attend_tile(
    b_q_latent,
    b_q_rope,
    b_latent,
    b_rope,
    factor,
    exponent,
    is_valid,
    b_max,
    b_sum,
    b_acc,
    head_scale,
    GROUPED: tl.constexpr,
    SUM_LATER: tl.constexpr,
):
    """One step of the running softmax (base 2) over a tile of BN slots.

    b_max and b_acc follow the weights that the latents are multiplied with, b_sum the weights of the softmax.
    """
    # [BH, BN]
    b_score = tl.dot(b_q_latent, tl.trans(b_latent), input_precision="ieee")
    if GROUPED:
        b_score *= factor[None, :]
    b_score = tl.dot(b_q_rope, tl.trans(b_rope), b_score, input_precision="ieee") * head_scale[:, None]
    if GROUPED:
        b_score += exponent[None, :]
    b_score = tl.where(is_valid[None, :], b_score, _NOTHING)
    b_new_max = tl.maximum(b_max, tl.max(b_score, 1))
    b_decay = tl.exp2(b_max - b_new_max)
    b_weight = tl.where(is_valid[None, :], tl.exp2(b_score - b_new_max[:, None]), 0.0)
    b_part = b_weight * tl.exp2(-exponent)[None, :] if GROUPED else b_weight
    b_sum = (b_sum * b_decay[:, None] + b_part) if SUM_LATER else (b_sum * b_decay + tl.sum(b_part, 1))
    b_acc = tl.dot(b_weight.to(b_latent.dtype), b_latent, b_acc * b_decay[:, None], input_precision="ieee")
    return b_new_max, b_sum, b_acc


@triton.jit(do_not_specialize=["heads", "table_width", "table_row", "block_stride_rows", "kv_row"])
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
    INTERPRETED: tl.constexpr,
):
    """Attention of one row and BH heads over one split of its slots.

    Grid: program_id(0) = (row * SPLITS + split) * head_blocks + head_block, head blocks fastest so that they share
    the gathered rows in L2. q_latent [rows, heads, 512], q_rope [rows, heads, 64], kv [slots, 576 values, or 144 or 164
    words of four fp8 values], one row kv_row times 16 bytes behind the other.
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

    DTYPE: tl.constexpr = q_latent.dtype.element_ty
    head_scale = tl.full([BH], 1.0, tl.float32) * score_scale
    if IS_FP8:
        # a power of two brings the query into the range of float16 and costs no bits
        b_largest = tl.max(tl.abs(b_q_latent.to(tl.float32)), 1)
        b_largest = tl.maximum(b_largest, tl.max(tl.abs(b_q_rope.to(tl.float32)), 1))
        power, inverse, _exponent = power_of_two(b_largest)
        head_scale *= power
        b_q_latent = (b_q_latent.to(tl.float32) * inverse[:, None]).to(tl.float16)
        b_q_rope = (b_q_rope.to(tl.float32) * inverse[:, None]).to(DTYPE if GROUPED else tl.float16)

    b_max = tl.full([BH], _NOTHING, tl.float32)
    # a sum over the slots of a tile crosses warps, at the cost of barriers; one for all tiles costs registers, which
    # programs of many heads do not have
    SUM_LATER: tl.constexpr = BH == 16
    b_sum = tl.zeros([BH, BN], tl.float32) if SUM_LATER else tl.zeros([BH], tl.float32)
    b_acc = tl.zeros([BH, _LATENT], tl.float32)
    for i_tile in tl.range(start, end, BN, num_stages=STAGES):
        latent, scale, rope, is_valid = _load_tile(
            kv, p_index, kv_row, i_tile, end, DTYPE, BN, IS_FP8, GROUPED
        )
        b_latent, b_rope, factor, exponent = _operands(
            latent, scale, rope, DTYPE, BN, IS_FP8, GROUPED, INTERPRETED
        )
        b_max, b_sum, b_acc = _attend_tile(
            b_q_latent,
            b_q_rope,
            b_latent,
            b_rope,
            factor,
            exponent,
            is_valid,
            b_max,
            b_sum,
            b_acc,
            head_scale,
            GROUPED,
            SUM_LATER,
        )

    if SUM_LATER:
        b_sum = tl.sum(b_sum, 1)
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
