"""The forward pass of one sparse MLA layer: hands vLLM's tensors to the kernels; knows no arithmetic itself.

Few rows have their positions turned into slots inside the attention launch; many rows, and rows under decode context
parallelism, get them from vLLM's converter, which also packs them.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import vllm.envs as vllm_envs
from vllm.model_executor.layers.attention.sparse_mla_attention import (
    SparseMLACommonImpl,
    SparseMLACommonMetadata,
)
from vllm.v1.attention.backends.mla.sparse_utils import flat_kv_row_view
from vllm.v1.worker.workspace import current_workspace_manager

from glm5_vllm import attest
from glm5_vllm.attention.kernels.configs import FUSED_ROWS, KVFormat
from glm5_vllm.attention.kernels.inputs import KVRows, Positions, Query, Slots
from glm5_vllm.attention.kernels.launch import Workspace, attend
from glm5_vllm.attention.registration import BACKEND_CLASS, BACKEND_NAME


def kv_format_named(kv_cache_dtype: str | None) -> KVFormat:
    """The kernels' format for a value of --kv-cache-dtype."""
    if kv_cache_dtype == "fp8_ds_mla":
        return KVFormat.FP8_GROUPED
    return KVFormat.FP8 if kv_cache_dtype in ("fp8", "fp8_e4m3") else KVFormat.WIDE


class TritonMLASparseImpl(SparseMLACommonImpl[SparseMLACommonMetadata]):
    """Sparse MLA of one layer through `attend`, by positions or by slots."""

    group_conversion_decode_only: ClassVar[bool] = True
    can_return_lse_for_decode: bool = True
    lse_base_on_e: bool = True
    supports_dcp: bool = True
    # prefill context parallelism was never run with this backend
    supports_pcp: bool = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.kv_format = kv_format_named(self.kv_cache_dtype)
        # the query stays in the activation's type whatever the cache holds
        self.supports_quant_query_input = False
        # short prompts go through dense attention where it reads the cache's type
        self.supports_dense_mha_prefill = self.kv_format is KVFormat.WIDE
        self.batch_invariant = bool(vllm_envs.VLLM_BATCH_INVARIANT)
        positions = self.topk_indices_buffer
        self.top_k = 0 if positions is None else int(positions.shape[1])
        self.dtype = torch.get_default_dtype()
        self.workspace()
        attest.layer_built(
            attest.LayerFacts(
                backend=BACKEND_NAME,
                backend_class=BACKEND_CLASS,
                dtype=str(self.dtype).removeprefix("torch."),
                kv_cache_dtype=self.kv_cache_dtype,
                heads_per_rank=self.num_heads,
                top_k=self.top_k,
            )
        )

    @property
    def kernel_heads(self) -> int:
        """Heads the kernels see: under decode context parallelism each rank computes all ranks' heads."""
        return self.num_heads * max(self.dcp_world_size, 1)

    def workspace(self) -> Workspace:
        """Scratch that all layers of this process share, one for each micro-batch; it exists before any capture."""
        manager = current_workspace_manager()
        heads, top_k = self.kernel_heads, self.top_k
        workspace: Workspace = manager.get_persistent_resource(
            (Workspace, heads, top_k),
            lambda: Workspace.create(
                heads, top_k, FUSED_ROWS, torch.device("cuda", torch.cuda.current_device())
            ),
        )
        return workspace

    def forward_mqa(
        self,
        q: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
        kv_c_and_k_pe_cache: torch.Tensor,
        attn_metadata: SparseMLACommonMetadata,
        layer: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Attend from q [rows, heads, 576] to the positions in the indexer's buffer; out [rows, heads, 512] and lse."""
        rows = q[0].shape[0] if isinstance(q, tuple) else q.shape[0]
        if rows > FUSED_ROWS or self.dcp_world_size > 1:
            return super().forward_mqa(q, kv_c_and_k_pe_cache, attn_metadata, layer)
        positions = self.topk_indices_buffer
        assert positions is not None
        kv, block_stride_rows = flat_kv_row_view(self._typed(kv_c_and_k_pe_cache), attn_metadata.block_size)
        index = Positions(
            positions[:rows],
            attn_metadata.block_table,
            attn_metadata.req_id_per_token[:rows],
            attn_metadata.block_size,
            block_stride_rows,
        )
        return self._attend(q, KVRows(kv, self._kv_scale(layer)), index)

    def _forward_mqa_kernel(
        self,
        q: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
        kv_cache: torch.Tensor,
        topk_indices: torch.Tensor,
        valid_counts: torch.Tensor,
        *,
        layer: Any,
        block_size: int,
        is_decode: bool,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        kv, _ = flat_kv_row_view(self._typed(kv_cache), block_size)
        return self._attend(q, KVRows(kv, self._kv_scale(layer)), Slots(topk_indices, valid_counts))

    def _attend(
        self, q: torch.Tensor | tuple[torch.Tensor, torch.Tensor], kv: KVRows, index: Slots | Positions
    ) -> tuple[torch.Tensor, torch.Tensor]:
        query = Query.of(q, self.scale)
        return attend(query, kv, index, self.workspace(), batch_invariant=self.batch_invariant)

    def _typed(self, kv_cache: torch.Tensor) -> torch.Tensor:
        """The cache in its own type: vLLM keeps fp8 caches as bytes."""
        if self.kv_format is KVFormat.FP8 and kv_cache.dtype == torch.uint8:
            return kv_cache.view(torch.float8_e4m3fn)
        return kv_cache

    def _kv_scale(self, layer: Any) -> float:
        return float(layer._k_scale_float) if self.kv_format is KVFormat.FP8 else 1.0
