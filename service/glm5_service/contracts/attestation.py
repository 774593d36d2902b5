"""attention/rank-N.json: what a rank really runs.

Writer: the plugin's `attest`, in each worker. Readers: `watch.backend`, the sidecar, `glm5 demo`.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from glm5_service.contracts.base import Record


class Attestation(Record):
    """The whole file. Facts that differ between the layers of a rank are joined with commas."""

    schema_version: Literal[1] = Field(alias="schema")
    rank: int
    backend: str
    backend_class: str
    dtype: str
    kv_cache_dtype: str
    heads_per_rank: int
    top_k: int
    layers: int
    device: str
    compute_capability: str | None
    versions: dict[str, str]
    instruction_sets: list[str] = Field(default_factory=list)
    """Those of avx2, avx512_f, avx512_bf16 and amx_tile by which the CPU profile chose its kernels; empty on a GPU."""
    settings: dict[str, bool | int] = Field(default_factory=dict)
    """What the engine runs with: chunked_prefill, prefix_caching, max_num_batched_tokens, block_size."""
    kernel_configurations: dict[str, dict[str, object]]
    """Tile, warp and split choice of each kernel."""
    kernel_seconds: dict[int, float]
    """Seconds of one attention call, by rows."""
    built_at: float | None
    """When the last layer was built, in seconds since 1970."""
    first_call_at: float | None
    """When the rank first computed real attention, in seconds since 1970; None before."""
