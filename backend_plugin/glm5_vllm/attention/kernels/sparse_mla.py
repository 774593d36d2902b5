"""Attention over a virtual block table for caches of 16 or 32 bits a value; never imports vLLM.

Owns the arithmetic on the device and nothing else: shapes are checked in launch.py, tiles are chosen in configs.py.
The math, the symbols and the numerics are described in ../README.md.
"""

from __future__ import annotations

import triton
import triton.language as tl

from glm5_vllm.attention.kernels.splits import (
    LATENT,
    NOTHING,
    ROPE,
    UNSPECIALIZED,
    part_of_program,
    store_part,
)


@triton.jit
def _load_tile(kv, p_index, kv_row, i_tile, end, BN: tl.constexpr):
    """KV rows of one tile: latent [BN, 512], rope [BN, 64], and which slots count.

    What does not count is never read, so NaN in an unused slot cannot pass.
    """
    o_slot = i_tile + tl.arange(0, BN)
    slot = tl.load(p_index + o_slot, mask=o_slot < end, other=-1)
    is_valid = slot >= 0
    m_row = is_valid[:, None]
    # rows start at multiples of 16 bytes, and the compiler must see it
    p_row = kv + slot.to(tl.int64) * kv_row * (128 // kv.dtype.element_ty.primitive_bitwidth)
    b_latent = tl.load(p_row[:, None] + tl.arange(0, LATENT)[None, :], mask=m_row, other=0)
    b_rope = tl.load((p_row + LATENT)[:, None] + tl.arange(0, ROPE)[None, :], mask=m_row, other=0)
    return b_latent, b_rope, is_valid


@triton.jit
def _attend_tile(
    b_q_latent,
    b_q_rope,
    b_latent,
    b_rope,
    is_valid,
    b_max,
    b_sum,
    b_acc,
    score_scale,
    SUM_LATER: tl.constexpr,
):
    """One step of the running softmax (base 2) over a tile of BN slots."""
    # [BH, BN]
    b_score = tl.dot(b_q_latent, tl.trans(b_latent), input_precision="ieee")
    b_score = tl.dot(b_q_rope, tl.trans(b_rope), b_score, input_precision="ieee") * score_scale
    b_score = tl.where(is_valid[None, :], b_score, NOTHING)
    b_new_max = tl.maximum(b_max, tl.max(b_score, 1))
    b_decay = tl.exp2(b_max - b_new_max)
    b_weight = tl.where(is_valid[None, :], tl.exp2(b_score - b_new_max[:, None]), 0.0)
    b_sum = (b_sum * b_decay[:, None] + b_weight) if SUM_LATER else (b_sum * b_decay + tl.sum(b_weight, 1))
    b_acc = tl.dot(b_weight.to(b_latent.dtype), b_latent, b_acc * b_decay[:, None], input_precision="ieee")
    return b_new_max, b_sum, b_acc


@triton.jit(do_not_specialize=UNSPECIALIZED)
def attend_kernel(
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
    SPLITS: tl.constexpr,
    BH: tl.constexpr,
    BN: tl.constexpr,
    BC: tl.constexpr,
    STAGES: tl.constexpr,
    PDL: tl.constexpr,
):
    """Attention of one row and BH heads over one split of its slots.

    Grid: rows * SPLITS * cdiv(heads, BH) programs, see `part_of_program`. q_latent [rows, heads, 512], q_rope
    [rows, heads, 64], kv [slots, 576], one row kv_row times 16 bytes behind the other. BLOCK_SIZE 0: index [rows, width]
    holds slots, of which the first counts[row] may count. Otherwise it holds positions, which block_table
    [requests, table_width] turns into slots, kept in slots [rows, width]. With SPLITS > 1 part_out
    [rows, SPLITS, heads, 512] and part_lse (base 2) are written for merge_kernel, else out and lse. The caller
    guarantees that every slot that counts lies inside the cache.
    """
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    i_row, i_split, i_head_block, p_index, start, end = part_of_program(
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
        BLOCK_SIZE,
        SPLITS,
        BH,
        BN,
        BC,
    )

    o_head = i_head_block * BH + tl.arange(0, BH)
    m_head = o_head < heads
    o_latent = tl.arange(0, LATENT)
    # [BH, 512] and [BH, 64]
    p_q_latent = q_latent + i_row * q_latent_row + o_head[:, None].to(tl.int64) * q_latent_head
    p_q_rope = q_rope + i_row * q_rope_row + o_head[:, None].to(tl.int64) * q_rope_head
    b_q_latent = tl.load(p_q_latent + o_latent[None, :], mask=m_head[:, None], other=0.0)
    b_q_rope = tl.load(p_q_rope + tl.arange(0, ROPE)[None, :], mask=m_head[:, None], other=0.0)

    b_max = tl.full([BH], NOTHING, tl.float32)
    # a sum over the slots of a tile crosses warps, at the cost of barriers; one for all tiles costs registers, which
    # programs of many heads do not have
    SUM_LATER: tl.constexpr = BH == 16
    b_sum = tl.zeros([BH, BN], tl.float32) if SUM_LATER else tl.zeros([BH], tl.float32)
    b_acc = tl.zeros([BH, LATENT], tl.float32)
    for i_tile in tl.range(start, end, BN, num_stages=STAGES):
        latent, rope, is_valid = _load_tile(kv, p_index, kv_row, i_tile, end, BN)
        b_max, b_sum, b_acc = _attend_tile(
            b_q_latent,
            b_q_rope,
            latent.to(b_q_latent.dtype),
            rope.to(b_q_rope.dtype),
            is_valid,
            b_max,
            b_sum,
            b_acc,
            score_scale,
            SUM_LATER,
        )

    if SUM_LATER:
        b_sum = tl.sum(b_sum, 1)
    b_divisor = tl.where(b_sum > 0, b_sum, 1.0)
    b_out = b_acc * (value_scale / b_divisor)[:, None]
    b_lse = tl.where(b_sum > 0, b_max + tl.log2(b_divisor), -float("inf"))
    store_part(
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
        o_head[:, None],
        o_latent[None, :],
        SPLITS,
    )
