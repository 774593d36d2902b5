"""Attention over a virtual block table for fp8 caches; never imports vLLM.

The cost of an fp8 tile is its conversion and the waits between its steps, not its bytes. So each of four warps takes a
quarter of the columns of K and of the output: it reads a quarter of the query, its sums are short and many at a time, and
the quarters of a score meet once a tile. The math and the numerics are described in ../README.md.
"""

from __future__ import annotations

import triton
import triton.language as tl

from glm5_vllm.attention.kernels.fp8 import float16_values, power_of_two
from glm5_vllm.attention.kernels.splits import LATENT, NOTHING, UNSPECIALIZED, part_of_program, store_part

# no more is gained by a smaller power: vLLM's least scale is 2^-126, and sums of its inverse would leave float32
_LEAST_SCALE = tl.constexpr(2.0**-64)
# quarters of a row, one a warp; fp8_ds_mla has one float32 scale for the 128 latent columns of each
_PARTS = tl.constexpr(4)
_PART = tl.constexpr(512 // 4)
_ROPE_PART = tl.constexpr(64 // 4)


@triton.jit
def _load_tile(
    kv, p_index, kv_row, i_tile, end, ACTIVATION: tl.constexpr, BN: tl.constexpr, GROUPED: tl.constexpr
):
    """Raw KV rows of one tile, and which slots count.

    Latent int32 words [4, BN, 32] of four fp8 values. Rope the same, [4, BN, 4], and if grouped values of the
    activation's type [4, BN, 16]. Scales [BN, 4], and the same once more as [4, BN, 1]: two layouts, no exchange. What
    does not count is never read, so NaN in an unused slot cannot pass.
    """
    o_slot = i_tile + tl.arange(0, BN)
    slot = tl.load(p_index + o_slot, mask=o_slot < end, other=-1)
    is_valid = slot >= 0
    m_row = is_valid[None, :, None]
    o_part = tl.arange(0, _PARTS)[:, None, None]
    # rows start at multiples of 16 bytes, and the compiler must see it
    p_row = kv + slot.to(tl.int64) * kv_row * 4
    p_latent = p_row[None, :, None] + (o_part * (_PART // 4) + tl.arange(0, _PART // 4)[None, None, :])
    b_latent = tl.load(p_latent, mask=m_row, other=0)
    p_rest = p_row + LATENT // 4
    if GROUPED:
        # 512 fp8, four float32 scales of 128 columns each, 64 values in the activation's type
        p_scale = p_rest.to(tl.pointer_type(tl.float32), bitcast=True)
        b_scale = tl.load(p_scale[:, None] + tl.arange(0, _PARTS)[None, :], mask=is_valid[:, None], other=0)
        b_part_scale = tl.load(p_scale[None, :, None] + o_part, mask=m_row, other=0)
        p_rope = (p_rest + _PARTS).to(tl.pointer_type(ACTIVATION), bitcast=True)
        p_rope = p_rope[None, :, None] + (o_part * _ROPE_PART + tl.arange(0, _ROPE_PART)[None, None, :])
    else:
        b_scale = is_valid
        b_part_scale = is_valid
        p_rope = p_rest[None, :, None] + (
            o_part * (_ROPE_PART // 4) + tl.arange(0, _ROPE_PART // 4)[None, None, :]
        )
    b_rope = tl.load(p_rope, mask=m_row, other=0)
    return b_latent, b_scale, b_part_scale, b_rope, is_valid


@triton.jit
def _sum_parts(parts):
    """[4, A, B] -> [A, B]: halves are added inside a thread, where tl.sum would shuffle each value between threads."""
    a, b = tl.split(tl.reshape(tl.permute(parts, (1, 2, 0)), [parts.shape[1], parts.shape[2], 2, 2]))
    a, b = tl.split(a + b)
    return a + b


@triton.jit
def _largest_of_four(values):
    """[A, 4] -> [A], inside a thread."""
    a, b = tl.split(tl.reshape(values, [values.shape[0], 2, 2]))
    a, b = tl.split(tl.maximum(a, b))
    return tl.maximum(a, b)


@triton.jit
def _attend_tile(
    b_q_latent,
    b_q_rope,
    latent,
    b_scale,
    b_part_scale,
    rope,
    is_valid,
    b_max,
    b_sum,
    b_acc,
    head_scale,
    GROUPED: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """One step of the running softmax (base 2) over a tile of BN slots; slots are the rows of the score's product.

    A grouped row's scales go onto the quarters of its score, and onto its weights. Those are float16, which not every
    scale fits: the power of two 2^e below the row's largest scale goes as e onto the weight's exponent, and the rest,
    below 2, onto the weight. b_max and b_acc follow the weights so enlarged, b_sum the weights of the softmax.
    """
    if GROUPED:
        _power, inverse, exponent = power_of_two(tl.maximum(_largest_of_four(b_scale), _LEAST_SCALE))
        b_factor = tl.trans((b_scale * inverse[:, None]).to(tl.float16))[:, None, :]
    b_latent = float16_values(latent, INTERPRETED)
    b_rope = rope if GROUPED else float16_values(rope, INTERPRETED)
    # [4, BN, BH]
    b_score = tl.dot(b_latent, b_q_latent)
    if GROUPED:
        b_score *= b_part_scale
    # [BN, BH]
    b_score = _sum_parts(tl.dot(b_rope, b_q_rope, b_score)) * head_scale[None, :]
    if GROUPED:
        b_score += exponent[:, None]
    b_score = tl.where(is_valid[:, None], b_score, NOTHING)
    b_new_max = tl.maximum(b_max, tl.max(b_score, 0))
    b_decay = tl.exp2(b_max - b_new_max)
    b_weight = tl.where(is_valid[:, None], tl.exp2(b_score - b_new_max[None, :]), 0.0)
    b_softmax = b_weight * tl.exp2(-exponent)[:, None] if GROUPED else b_weight
    b_sum = b_sum * b_decay + tl.sum(b_softmax, 0)
    # [4, BH, BN]
    b_weight = tl.trans(b_weight.to(tl.float16))[None, :, :]
    b_weight = tl.broadcast_to(b_weight, [_PARTS, b_weight.shape[1], b_weight.shape[2]])
    if GROUPED:
        b_weight *= b_factor
    b_acc = tl.dot(b_weight, b_latent, b_acc * b_decay[None, :, None])
    return b_new_max, b_sum, b_acc


@triton.jit(do_not_specialize=UNSPECIALIZED)
def attend_fp8_kernel(
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
    GROUPED: tl.constexpr,
    INTERPRETED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    SPLITS: tl.constexpr,
    BH: tl.constexpr,
    BN: tl.constexpr,
    BC: tl.constexpr,
    STAGES: tl.constexpr,
    PDL: tl.constexpr,
):
    """`attend_kernel` for kv int32 [slots, 144] (576 fp8 values) or, GROUPED, [slots, 164] (fp8_ds_mla).

    Arguments, grid and results are those of `attend_kernel`.
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
    m_query = m_head[None, :, None]
    o_part = tl.arange(0, _PARTS)[:, None, None]
    o_latent = o_part * _PART + tl.arange(0, _PART)[None, None, :]
    o_rope = o_part * _ROPE_PART + tl.arange(0, _ROPE_PART)[None, None, :]
    # [4, BH, 128] and [4, BH, 16]
    p_q_latent = q_latent + i_row * q_latent_row + o_head[None, :, None].to(tl.int64) * q_latent_head
    p_q_rope = q_rope + i_row * q_rope_row + o_head[None, :, None].to(tl.int64) * q_rope_head
    b_q_latent = tl.load(p_q_latent + o_latent, mask=m_query, other=0.0)
    b_q_rope = tl.load(p_q_rope + o_rope, mask=m_query, other=0.0)

    # a power of two brings the query into the range of float16 and costs no bits
    ACTIVATION: tl.constexpr = q_latent.dtype.element_ty
    b_q_latent = b_q_latent.to(tl.float32)
    b_q_rope = b_q_rope.to(tl.float32)
    b_largest = tl.max(tl.max(tl.abs(b_q_latent), 2), 0)
    b_largest = tl.maximum(b_largest, tl.max(tl.max(tl.abs(b_q_rope), 2), 0))
    power, inverse, _exponent = power_of_two(b_largest)
    head_scale = power * score_scale
    b_q_latent = (b_q_latent * inverse[None, :, None]).to(tl.float16)
    b_q_rope = (b_q_rope * inverse[None, :, None]).to(ACTIVATION if GROUPED else tl.float16)
    b_q_latent = tl.permute(b_q_latent, (0, 2, 1))
    b_q_rope = tl.permute(b_q_rope, (0, 2, 1))

    b_max = tl.full([BH], NOTHING, tl.float32)
    b_sum = tl.zeros([BH], tl.float32)
    b_acc = tl.zeros([_PARTS, BH, _PART], tl.float32)
    for i_tile in tl.range(start, end, BN, num_stages=STAGES):
        latent, b_scale, b_part_scale, rope, is_valid = _load_tile(
            kv, p_index, kv_row, i_tile, end, ACTIVATION, BN, GROUPED
        )
        b_max, b_sum, b_acc = _attend_tile(
            b_q_latent,
            b_q_rope,
            latent,
            b_scale,
            b_part_scale,
            rope,
            is_valid,
            b_max,
            b_sum,
            b_acc,
            head_scale,
            GROUPED,
            INTERPRETED,
        )

    b_divisor = tl.where(b_sum > 0, b_sum, 1.0)
    b_out = b_acc * (value_scale / b_divisor)[None, :, None]
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
        o_head[None, :, None],
        o_latent,
        SPLITS,
    )
