"""Triton kernels for the scores of the DSA indexer. Never imports vLLM.

score(row, token) = scale(token) * sum over heads of weight(row, head) * relu(q(row, head) . k(token)), with q and k
float8_e4m3 and everything else float32. They replace DeepGEMM's kernels on cards where those do not run.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _scores(q, weights, b_key, b_scale, i_row, HEADS: tl.constexpr, DIM: tl.constexpr):
    """Scores of one row against keys [DIM, BN]; float8 values are exact in float16, and so are the products."""
    o_head = tl.arange(0, HEADS)
    o_dim = tl.arange(0, DIM)
    # [HEADS, DIM]
    b_q = tl.load(q + i_row * (HEADS * DIM) + o_head[:, None] * DIM + o_dim[None, :]).to(tl.float16)
    b_weight = tl.load(weights + i_row * HEADS + o_head)
    # [HEADS, BN]
    b_product = tl.maximum(tl.dot(b_q, b_key, input_precision="ieee"), 0.0)
    return tl.sum(b_product * b_weight[:, None], 0) * b_scale


@triton.jit(do_not_specialize=["rows", "logits_row"])
def gathered_logits_kernel(
    q,
    keys,
    scales,
    weights,
    first,
    last,
    logits,
    rows,
    logits_row,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
):
    """Scores of BM rows against BN gathered keys, which are loaded once for all of them.

    Grid: program_id(0) = block of keys, program_id(1) = block of rows. q [rows, HEADS, DIM], keys [tokens, DIM], scales
    [tokens], weights [rows, HEADS]; row r sees tokens first[r] to last[r] and writes them from column 0 of logits
    [rows, columns] on. The caller guarantees that the columns suffice.
    """
    o_token = tl.program_id(0).to(tl.int64) * BN + tl.arange(0, BN)
    start_row = tl.program_id(1) * BM
    o_row = start_row + tl.arange(0, BM)
    m_row = o_row < rows
    # what no row of the block sees is neither loaded nor written
    lowest = tl.min(tl.load(first + o_row, mask=m_row, other=2147483647))
    highest = tl.max(tl.load(last + o_row, mask=m_row, other=0))
    m_token = (o_token >= lowest) & (o_token < highest)
    if tl.sum(m_token.to(tl.int32)) > 0:
        o_dim = tl.arange(0, DIM)
        b_key = tl.load(keys + o_token[None, :] * DIM + o_dim[:, None], mask=m_token[None, :], other=0.0)
        b_key = b_key.to(tl.float16)
        b_scale = tl.load(scales + o_token, mask=m_token, other=0.0)
        for i in tl.range(0, tl.minimum(BM, rows - start_row)):
            row = start_row.to(tl.int64) + i
            begin = tl.load(first + row)
            m_seen = (o_token >= begin) & (o_token < tl.load(last + row))
            b_score = _scores(q, weights, b_key, b_scale, row, HEADS, DIM)
            tl.store(logits + row * logits_row + o_token - begin, b_score, mask=m_seen)


@triton.jit(do_not_specialize=["table_row", "table_width", "logits_row"])
def paged_logits_kernel(
    q,
    cache,
    weights,
    lengths,
    block_table,
    logits,
    table_row,
    table_width,
    block_bytes,
    logits_row,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    ROWS: tl.constexpr,
    PAGE: tl.constexpr,
):
    """Scores of the ROWS rows of one request against one page of its keys.

    Grid: program_id(0) = page of the request, program_id(1) = request. q [requests * ROWS, HEADS, DIM], cache bytes
    [blocks, PAGE * (DIM + 4)]: PAGE keys, then their float32 scales; lengths [requests, ROWS]; logits
    [requests * ROWS, columns]. Pages beyond the longest row, or outside the block table, are left as they are.
    """
    i_page = tl.program_id(0)
    i_request = tl.program_id(1).to(tl.int64)
    o_token = i_page * PAGE + tl.arange(0, PAGE)
    longest = 0
    for i in tl.static_range(ROWS):
        longest = tl.maximum(longest, tl.load(lengths + i_request * ROWS + i))
    if (i_page * PAGE < longest) & (i_page < table_width):
        block = tl.load(block_table + i_request * table_row + i_page).to(tl.int64)
        p_block = cache + block * block_bytes
        o_dim = tl.arange(0, DIM)
        o_slot = tl.arange(0, PAGE)
        m_token = o_token < longest
        p_key = p_block.to(tl.pointer_type(tl.float8e4nv), bitcast=True)
        b_key = tl.load(p_key + o_slot[None, :] * DIM + o_dim[:, None], mask=m_token[None, :], other=0.0)
        b_key = b_key.to(tl.float16)
        p_scale = (p_block + PAGE * DIM).to(tl.pointer_type(tl.float32), bitcast=True)
        b_scale = tl.load(p_scale + o_slot, mask=m_token, other=0.0)
        for i in tl.static_range(ROWS):
            row = i_request * ROWS + i
            b_score = _scores(q, weights, b_key, b_scale, row, HEADS, DIM)
            m_seen = o_token < tl.load(lengths + row)
            tl.store(logits + row * logits_row + o_token, b_score, mask=m_seen)
