"""Declares to vLLM what TRITON_MLA_SPARSE takes and refuses, and builds its metadata; impl.py computes.

Every refusal is a reason in one sentence: vLLM prints them when the backend was asked for by name.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from vllm.config import VllmConfig, get_current_vllm_config_or_none
from vllm.model_executor.layers.attention.sparse_mla_attention import (
    SparseMLACommonMetadata,
    SparseMLACommonMetadataBuilder,
)
from vllm.platforms.interface import DeviceCapability
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionCGSupport,
    CommonAttentionMetadata,
    MultipleOf,
)
from vllm.v1.attention.backends.mla.sparse_utils import align_blocks_to_rows
from vllm.v1.attention.ops.metadata import compute_token_to_req_indices
from vllm.v1.kv_cache_interface import AttentionSpec

from glm5_vllm import attest
from glm5_vllm.attention import warmup
from glm5_vllm.attention.impl import TritonMLASparseImpl, kv_format_named
from glm5_vllm.attention.kernels.configs import supported_formats
from glm5_vllm.attention.registration import BACKEND_NAME

# requests with up to this many new tokens are computed as decode rows; above, dense prefill may serve short prompts
_DECODE_ROWS = 128


class TritonMLASparseBackend(AttentionBackend):
    """Sparse MLA over a virtual block table of page size 1, in Triton."""

    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float16, torch.bfloat16]
    supported_kv_cache_dtypes: ClassVar[list[str]] = [
        "auto",
        "bfloat16",
        "float16",
        "fp8",
        "fp8_e4m3",
        "fp8_ds_mla",
    ]

    @staticmethod
    def get_name() -> str:
        return BACKEND_NAME

    @staticmethod
    def get_impl_cls() -> type[TritonMLASparseImpl]:
        return TritonMLASparseImpl

    @staticmethod
    def get_builder_cls() -> type[TritonMLASparseMetadataBuilder]:
        return TritonMLASparseMetadataBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[int | MultipleOf]:
        # the indexer's cache has blocks of 64, and both share one block table
        return [MultipleOf(64)]

    @classmethod
    def customize_spec(cls, spec: AttentionSpec) -> AttentionSpec:
        # rows are addressed flat over the whole cache, so a block must hold a whole number of them
        return align_blocks_to_rows(spec)

    @classmethod
    def get_supported_head_sizes(cls) -> list[int]:
        return [576]

    @classmethod
    def is_mla(cls) -> bool:
        return True

    @classmethod
    def is_sparse(cls) -> bool:
        return True

    @classmethod
    def supports_batch_invariance(cls) -> bool:
        return True

    @classmethod
    def supports_compute_capability(cls, capability: DeviceCapability) -> bool:
        return capability.major >= 8

    @classmethod
    def supports_combination(
        cls,
        head_size: int,
        dtype: torch.dtype,
        kv_cache_dtype: str | None,
        block_size: int | None,
        use_mla: bool,
        has_sink: bool,
        use_sparse: bool,
        use_mm_prefix: bool,
        device_capability: DeviceCapability,
    ) -> str | None:
        capability = (device_capability.major, device_capability.minor)
        if capability < (8, 9):
            # the attention kernels compile from 8.0 up; the layer around them does not
            return (
                f"compute capability {device_capability.as_version_str()} is too low for the layer's fused indexer "
                "kernels, which convert to fp8 in Triton; 8.9 or higher is needed"
            )
        if kv_format_named(kv_cache_dtype) not in supported_formats(capability):
            return f"kv_cache_dtype {kv_cache_dtype} is not read on compute capability {capability}"
        config = get_current_vllm_config_or_none()
        if config is not None and config.attention_config.hisparse_config is not None:
            return "a KV cache kept on the host (hisparse) is not supported"
        return None


class TritonMLASparseMetadataBuilder(SparseMLACommonMetadataBuilder[SparseMLACommonMetadata]):
    """vLLM's common sparse metadata; compiles and times the kernels before any graph is captured."""

    metadata_cls = SparseMLACommonMetadata
    # decode with one row a request, or with the same 2 to 4 rows each when tokens are predicted ahead
    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.UNIFORM_BATCH

    def __init__(
        self,
        kv_cache_spec: AttentionSpec,
        layer_names: list[str],
        vllm_config: VllmConfig,
        device: torch.device,
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self._init_reorder_batch_threshold(
            _DECODE_ROWS, supports_spec_as_decode=True, supports_dcp_with_varlen=True
        )
        # drafts of multi-token prediction then stay inside one graph; under context parallelism they are rebuilt
        self.supports_draft_decode_metadata_update = self.dcp_world_size == 1
        self._is_first_call_seen = False
        layer = vllm_config.compilation_config.static_forward_context[layer_names[0]]
        if isinstance(layer.impl, TritonMLASparseImpl):
            warmup.compile_and_time(
                layer.impl,
                vllm_config.scheduler_config.max_num_batched_tokens,
                kv_cache_spec.block_size,
                device,
            )

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> SparseMLACommonMetadata:
        metadata = super().build(common_prefix_len, common_attn_metadata, fast_build)
        # a replayed graph runs no Python of ours, so this is the last place that sees a real batch; it costs one copy a
        # step until then. Graphs are captured with the null block, 0. The slot would not do: under context parallelism it
        # is negative on every rank but the one that owns the token
        if (
            not self._is_first_call_seen
            and metadata.num_decode_tokens
            and common_attn_metadata.block_table_tensor[0, 0].item() > 0
        ):
            self._is_first_call_seen = attest.first_call()
        return metadata

    def update_draft_decode_metadata(self, metadata: SparseMLACommonMetadata) -> None:
        """Between two drafted tokens only the request of each row can change."""
        rows = metadata.num_decode_tokens
        if rows:
            compute_token_to_req_indices(metadata.query_start_loc, metadata.req_id_per_token, rows, rows)
