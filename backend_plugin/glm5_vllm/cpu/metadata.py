"""Per-step metadata of the CPU profile, shared by the attention backend and the indexer.

Every token is one row. The kernels do not distinguish prefill from decode.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from vllm.v1.attention.backend import AttentionMetadata, AttentionMetadataBuilder


@dataclass
class RowMetadata(AttentionMetadata):
    """The rows of one step, which are its tokens in order. Tensors are on the CPU."""

    num_reqs: int
    num_actual_tokens: int
    max_query_len: int
    max_seq_len: int
    query_start_loc: torch.Tensor  # int64 [requests + 1]
    seq_lens: torch.Tensor  # int64 [requests]
    block_table: torch.Tensor  # int32 [requests, max_blocks]
    slot_mapping: torch.Tensor  # int64 [rows], -1 for padding
    request_of_row: torch.Tensor  # int64 [rows]
    position_of_row: torch.Tensor  # int64 [rows], position in the row's request
    block_size: int
    # MLAAttention sends num_decode_tokens rows to forward_mqa, so this counts all rows
    num_decodes: int
    num_decode_tokens: int
    num_prefills: int = 0


class RowMetadataBuilder(AttentionMetadataBuilder[RowMetadata]):
    """Builds RowMetadata from vLLM's common metadata."""

    def __init__(
        self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self.block_size: int = kv_cache_spec.block_size

    def build(
        self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False
    ) -> RowMetadata:
        common = common_attn_metadata
        rows, requests = common.num_actual_tokens, common.num_reqs
        starts = common.query_start_loc[: requests + 1].long()
        lengths = starts[1:] - starts[:-1]
        request_of_row = torch.repeat_interleave(torch.arange(requests), lengths)[:rows]
        seq_lens = common.seq_lens[:requests].long()
        offset = torch.arange(rows) - starts[request_of_row]
        return RowMetadata(
            num_reqs=requests,
            num_actual_tokens=rows,
            max_query_len=common.max_query_len,
            max_seq_len=common.max_seq_len,
            query_start_loc=starts,
            seq_lens=seq_lens,
            block_table=common.block_table_tensor[:requests],
            slot_mapping=common.slot_mapping[:rows].long(),
            request_of_row=request_of_row,
            position_of_row=(seq_lens - lengths)[request_of_row] + offset,
            block_size=self.block_size,
            num_decodes=requests,
            num_decode_tokens=rows,
        )


def write_rows(cache: torch.Tensor, slots: torch.Tensor, rows: torch.Tensor) -> None:
    """Write rows [n, width] into a paged cache [blocks, block_size, width] at slots [n]. Negative slots are padding."""
    is_real = slots >= 0
    target = slots[is_real]
    block_size = cache.shape[1]
    cache[target // block_size, target % block_size] = rows[is_real].to(cache.dtype)
