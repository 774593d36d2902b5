"""Sparse MLA for the CPU profile: the float32 reference behind vLLM's attention interface.

It takes the same steps as the GPU backend. Top-k positions become physical slots. The slots are a virtual block table
of page size 1, and its length is the number of valid slots.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from vllm.model_executor.layers.attention.sparse_mla_attention import SharedTopkIndicesBuffer
from vllm.v1.attention.backend import AttentionBackend, MLAAttentionImpl
from vllm.v1.attention.backends.mla.sparse_utils import align_blocks_to_rows, flat_kv_row_view

from glm5_vllm import attest
from glm5_vllm.attention import reference
from glm5_vllm.cpu.metadata import RowMetadata, RowMetadataBuilder, write_rows
from glm5_vllm.cpu.platform import BACKEND_CLASS, BACKEND_NAME


class TorchMLASparseBackend(AttentionBackend):
    """Declares what the CPU profile's sparse MLA supports."""

    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float16, torch.bfloat16, torch.float32]
    supported_kv_cache_dtypes: ClassVar[list[str]] = ["auto", "float16", "bfloat16"]
    forward_includes_kv_cache_update = False

    @staticmethod
    def get_name() -> str:
        return BACKEND_NAME

    @staticmethod
    def get_impl_cls() -> type[TorchMLASparseImpl]:
        return TorchMLASparseImpl

    @staticmethod
    def get_builder_cls() -> type[RowMetadataBuilder]:
        return RowMetadataBuilder

    @classmethod
    def customize_spec(cls, spec: Any) -> Any:
        # rows have flat addresses over the whole cache, so a block must hold a whole number of rows
        return align_blocks_to_rows(spec)

    @classmethod
    def is_mla(cls) -> bool:
        return True

    @classmethod
    def is_sparse(cls) -> bool:
        return True

    @classmethod
    def get_supported_head_sizes(cls) -> list[int]:
        return [576]


class TorchMLASparseImpl(MLAAttentionImpl[RowMetadata], SharedTopkIndicesBuffer):
    """Forward pass of one layer of the CPU profile's sparse MLA."""

    is_sparse = True
    supports_dense_mha_prefill = False

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int,
        alibi_slopes: list[float] | None,
        sliding_window: int | None,
        kv_cache_dtype: str,
        logits_soft_cap: float | None,
        attn_type: str,
        kv_sharing_target_layer_name: str | None,
        *,
        kv_lora_rank: int,
        indexer: Any = None,
        topk_indices_buffer: torch.Tensor | None = None,
        **unused: Any,
    ) -> None:
        self.num_heads, self.head_size, self.scale = num_heads, head_size, float(scale)
        self.num_kv_heads, self.kv_cache_dtype = num_kv_heads, kv_cache_dtype
        self.kv_lora_rank = kv_lora_rank
        self.init_topk_indices_buffer(indexer, topk_indices_buffer)
        attest.layer_built(
            attest.LayerFacts(
                backend=BACKEND_NAME,
                backend_class=BACKEND_CLASS,
                dtype=str(torch.get_default_dtype()).removeprefix("torch."),
                kv_cache_dtype=kv_cache_dtype,
                heads_per_rank=num_heads,
                top_k=0 if self.topk_indices_buffer is None else self.topk_indices_buffer.shape[1],
            )
        )

    def record_logical_topk_ready(self) -> None:
        """Does nothing. The layer calls this after the indexer, and on CPU nothing runs in parallel."""

    def do_kv_cache_update(
        self,
        kv_c_normed: torch.Tensor,
        k_pe: torch.Tensor,
        kv_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
        kv_cache_dtype: str,
        k_scale: torch.Tensor,
    ) -> None:
        """Write the latent part [n, 512] and the rope part [n, 1, 64] of n tokens as rows of the cache."""
        if kv_cache.numel() == 0:
            return
        slots = slot_mapping.flatten().long()
        n = slots.shape[0]
        write_rows(kv_cache, slots, torch.cat([kv_c_normed[:n], k_pe[:n].reshape(n, -1)], dim=-1))

    def forward_mqa(
        self,
        q: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
        kv_c_and_k_pe_cache: torch.Tensor,
        attn_metadata: RowMetadata,
        layer: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Attend from q [rows, heads, 576] to the positions that the indexer chose. Returns [rows, heads, 512]."""
        query = torch.cat(q, dim=-1) if isinstance(q, tuple) else q
        positions = self.topk_indices_buffer
        if positions is None:
            raise RuntimeError(
                "sparse MLA without an indexer's top-k buffer: check index_topk in the model's config"
            )
        rows, block_stride_rows = flat_kv_row_view(kv_c_and_k_pe_cache, attn_metadata.block_size)
        slots, counts = reference.physical_slots(
            positions[: query.shape[0]],
            attn_metadata.block_table,
            attn_metadata.request_of_row,
            attn_metadata.block_size,
            block_stride_rows,
        )
        out, lse = reference.sparse_mla(query, rows, slots, counts, self.scale, value_dim=self.kv_lora_rank)
        attest.first_call()
        return out.to(query.dtype), lse
