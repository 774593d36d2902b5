"""What a planned model's parameters take once loaded, split by what tensor parallelism shards and what it copies. Pure.

Quantised tensors stay as packed as the file has them, but for those that are held as float. `kv_b_proj` is one float
matrix: the absorbed halves that MLA multiplies by are views of it. With decode context parallelism ranks also hold the
queries' rows of each other, and a copy of the half that all those queries are multiplied by; both are told apart here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from math import prod

from glm5_vllm.gguf.model.hyperparameters import Hyperparameters
from glm5_vllm.gguf.plan.names import Treatment
from glm5_vllm.gguf.plan.planned import PlannedTensor

# vLLM's ReplicatedLinear layers and norms: every rank holds all of them
REPLICATED = (
    ".q_a_proj.",
    ".kv_a_proj_with_mqa.",
    ".indexer.",
    ".mlp.gate.",
    "norm.weight",
    ".eh_proj.",
)
QUERIES = ".q_b_proj."
KEYS_AND_VALUES = ".kv_b_proj."


@dataclass(frozen=True, slots=True)
class Footprint:
    """Packed parameters in bytes; float parameters in elements, for their type is chosen at start.

    `queries` is q_b_proj, `absorbed` the keys' half of kv_b_proj; the sharded ones have them too.
    """

    packed_sharded: int
    packed_replicated: int
    floats_sharded: int
    floats_replicated: int
    packed_queries: int
    floats_queries: int
    floats_absorbed: int


def footprint(
    tensors: Iterable[PlannedTensor], h: Hyperparameters, held: frozenset[str] = frozenset()
) -> Footprint:
    """The footprint of the parameters made of `tensors`; those of the targets `held` become float once loaded."""
    found = dict.fromkeys((field.name for field in fields(Footprint)), 0)
    for planned in tensors:
        is_kept = planned.treatment is Treatment.KEEP and planned.target not in held
        kind, size = ("packed", planned.nbytes) if is_kept else ("floats", prod(planned.shape))
        is_replicated = any(part in planned.target for part in REPLICATED)
        found[f"{kind}_replicated" if is_replicated else f"{kind}_sharded"] += size
        if QUERIES in planned.target:
            found[f"{kind}_queries"] += size
        if KEYS_AND_VALUES in planned.target:
            found["floats_absorbed"] += h.heads * h.nope_dim * h.kv_lora
    return Footprint(**found)
