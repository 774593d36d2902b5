"""The answer of `python -m glm5_vllm.gguf inspect MODEL --json`: what a GGUF model is and what a load would do.

Writer: the plugin's `gguf.inspect`. Readers: preflight, the command line of the engine, staging.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from glm5_service.contracts.base import Record


class ModelPart(Record):
    """One file of the model."""

    path: Path
    bytes: int


class Placed(Record):
    """How much of the file would be loaded."""

    tensors: int
    bytes: int


class Footprint(Record):
    """What parameters take once loaded: packed ones in bytes, floats in elements.

    `queries` is q_b_proj, `absorbed` the part of kv_b_proj that queries are multiplied by; both are among the sharded.
    """

    packed_sharded: int = 0
    packed_replicated: int = 0
    floats_sharded: int = 0
    floats_replicated: int = 0
    packed_queries: int = 0
    floats_queries: int = 0
    floats_absorbed: int = 0

    def rank_bytes(self, ranks: int, float_bytes: int, kv_ranks: int = 1) -> int:
        """Bytes on each of `ranks` GPUs, of which `kv_ranks` share a KV cache.

        Those hold the queries' rows of each other, and a further copy of what all their queries are multiplied by
        (vLLM's dcp_q_replicate, which is on for this model).
        """
        sharded = self.packed_sharded + self.floats_sharded * float_bytes
        if kv_ranks > 1:
            queries = self.packed_queries + self.floats_queries * float_bytes
            sharded += (kv_ranks - 1) * queries + kv_ranks * self.floats_absorbed * float_bytes
        return sharded // ranks + self.packed_replicated + self.floats_replicated * float_bytes


class Hyperparameters(Record):
    """Sizes and factors of the model, as the file states them."""

    layers: int
    """Layers of the main model, without those of multi-token prediction."""
    mtp_layers: int
    dense_layers: int
    context_length: int
    hidden: int
    dense_intermediate: int
    expert_intermediate: int
    vocab: int
    heads: int
    q_lora: int
    kv_lora: int
    rope_dim: int
    nope_dim: int
    value_dim: int
    experts: int
    experts_used: int
    shared_experts: int
    expert_groups: int
    expert_groups_used: int
    expert_scale: float
    normalize_experts: bool
    indexer_heads: int
    indexer_dim: int
    indexer_top_k: int
    rms_epsilon: float
    rope_theta: float


class Refused(Record):
    """A tensor the loader does not take."""

    name: str
    reason: str


class Release(Record):
    """Which published GLM-5 the file is."""

    name: str
    evidence: list[str]
    """What the file says of it, one statement each."""


class Tokenizer(Record):
    """What a server would tokenise and write chats with."""

    source: Literal["file", "folder"]
    """The file's metadata, or a Hugging Face folder in their place."""
    tokens: int
    merges: int
    chat_templates: list[str]
    """Names; the one of every chat is "default"."""
    error: str | None


class GgufFacts(Record):
    """The whole report on a model whose header can be read."""

    schema_version: Literal[1] = Field(alias="schema")
    path: Path
    files: list[ModelPart]
    architecture: str
    name: str | None
    release: Release
    tensors: int
    bytes: int
    context_length: int | None
    types: dict[str, Placed]
    load: Placed
    weights: Footprint
    """With every quantised weight as it is in the file."""
    draft_weights: Footprint
    speed_weights: Footprint
    """With the dense layers held as float that `engine.weights=speed` holds so."""
    speed_draft_weights: Footprint
    missing_mtp: list[str]
    hyperparameters: Hyperparameters
    indexer_layers: int
    set_aside: dict[str, Placed]
    """What the file holds and the main model does not load, by role."""
    refused: list[Refused]
    """The first of the tensors that stop the load."""
    refused_total: int
    tokenizer: Tokenizer
    error: str | None
    """Why the model cannot be served."""


class UnreadableModel(Record):
    """The report on a file of which nothing can be said."""

    schema_version: Literal[1] = Field(alias="schema")
    error: str
