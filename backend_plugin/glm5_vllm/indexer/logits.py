"""Launchers of the indexer's kernels, with the signatures of vLLM's DeepGEMM wrappers. Never imports vLLM."""

from __future__ import annotations

import torch
import triton

from glm5_vllm.indexer.kernels import gathered_logits_kernel, paged_logits_kernel

_ROWS_A_PROGRAM = 64  # rows that share one load of the keys
_KEYS_A_PROGRAM = 128


class IndexerInputError(ValueError):
    """The indexer's tensors do not have the layout that the kernels need."""


def mqa_logits(
    q: tuple[torch.Tensor, torch.Tensor | None],
    kv: tuple[torch.Tensor, torch.Tensor],
    weights: torch.Tensor,
    cu_seqlen_ks: torch.Tensor,
    cu_seqlen_ke: torch.Tensor,
    max_seqlen_k: int,
) -> torch.Tensor:
    """Scores of prefill rows against gathered keys.

    Args:
        q: float8_e4m3fn [rows, heads, dim] and None. The weights include its scale.
        kv: float8_e4m3fn [tokens, dim] and float32 [tokens].
        weights: float32 [rows, heads].
        cu_seqlen_ks: int32 [rows], first token that a row sees.
        cu_seqlen_ke: int32 [rows], token after the last one that a row sees.
        max_seqlen_k: upper bound of the number of tokens that a row sees.

    Returns:
        float32 [rows, max_seqlen_k]. A row's tokens begin at column 0. The other columns are not written.
    """
    values, keys = _check(q, kv[0]), kv[0]
    rows, heads, dim = values.shape
    logits = torch.empty(rows, max_seqlen_k, dtype=torch.float32, device=values.device)
    grid = (triton.cdiv(keys.shape[0], _KEYS_A_PROGRAM), triton.cdiv(rows, _ROWS_A_PROGRAM))
    if rows and keys.shape[0]:
        gathered_logits_kernel[grid](
            values,
            keys,
            kv[1],
            weights.contiguous(),
            cu_seqlen_ks,
            cu_seqlen_ke,
            logits,
            rows,
            logits.stride(0),
            HEADS=heads,
            DIM=dim,
            BM=_ROWS_A_PROGRAM,
            BN=_KEYS_A_PROGRAM,
            num_warps=4,
        )
    return logits


def paged_mqa_logits(
    q: tuple[torch.Tensor, torch.Tensor | None],
    kv_cache: torch.Tensor,
    weights: torch.Tensor,
    context_lens: torch.Tensor,
    block_tables: torch.Tensor,
    schedule_metadata: torch.Tensor,
    max_model_len: int,
    indices: torch.Tensor | None = None,
) -> torch.Tensor:
    """Scores of decode rows against the paged key cache.

    Args:
        q: float8_e4m3fn [requests, rows per request, heads, dim] and None.
        kv_cache: uint8 [blocks, page, 1, dim + 4] or [blocks, page, dim + 4]. A block has its keys, then their scales.
        weights: float32 [requests * rows per request, heads].
        context_lens: int32 [requests, rows per request], number of tokens that each row sees.
        block_tables: int32 [requests, max_blocks].
        schedule_metadata: not used.
        max_model_len: number of columns of the result.
        indices: rows of requests with different numbers of rows. Only vLLM's SM100 path passes them.

    Returns:
        float32 [requests * rows per request, max_model_len]. Columns after a row's length are not written.
    """
    if indices is not None:
        raise IndexerInputError(
            "the Triton indexer got row indices of a batch with unequal requests; expected none outside SM100. "
            "Use vLLM's own indexer on that card."
        )
    values = _check(q, kv_cache)
    requests, rows, heads, dim = values.shape
    if context_lens.numel() != requests * rows or not context_lens.is_contiguous():
        raise IndexerInputError(
            f"the Triton indexer got context lengths of shape {tuple(context_lens.shape)}; expected ({requests}, {rows}) "
            "without gaps. Pass one length a row."
        )
    page = kv_cache.shape[1]
    logits = torch.empty(requests * rows, max_model_len, dtype=torch.float32, device=values.device)
    if requests:
        paged_logits_kernel[(triton.cdiv(max_model_len, page), requests)](
            values,
            kv_cache,
            weights.contiguous(),
            context_lens,
            block_tables,
            logits,
            block_tables.stride(0),
            block_tables.shape[1],
            kv_cache.stride(0),
            logits.stride(0),
            HEADS=heads,
            DIM=dim,
            ROWS=rows,
            PAGE=page,
            num_warps=4,
        )
    return logits


def paged_mqa_logits_metadata(
    context_lens: torch.Tensor, block_size: int, num_sms: int, indices: torch.Tensor | None = None
) -> torch.Tensor:
    """Return zeros, int32 [1, 2], in place of DeepGEMM's schedule. The Triton grid needs no schedule."""
    return torch.zeros(1, 2, dtype=torch.int32, device=context_lens.device)


def _check(q: tuple[torch.Tensor, torch.Tensor | None], keys: torch.Tensor) -> torch.Tensor:
    values, scale = q
    if scale is not None or values.dtype != torch.float8_e4m3fn or not values.is_contiguous():
        raise IndexerInputError(
            f"the Triton indexer got queries of {values.dtype} with {'a' if scale is not None else 'no'} scale of their "
            "own; expected contiguous float8_e4m3fn without one. Switch the indexer's fp4 cache off."
        )
    if keys.shape[-1] - values.shape[-1] not in (0, 4):
        raise IndexerInputError(
            f"the Triton indexer got keys of {keys.shape[-1]} bytes for queries of {values.shape[-1]}; expected as many, "
            "or 4 more in a paged cache. Check index_head_dim."
        )
    return values
