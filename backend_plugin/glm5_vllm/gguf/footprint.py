"""What a planned model's parameters take once loaded, split by what tensor parallelism shards and what it copies. Pure.

vLLM keeps quantised tensors as packed as the file has them. `kv_b_proj` is one float matrix: the absorbed halves that
MLA multiplies by are views of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from glm5_vllm.gguf.names import Treatment
from glm5_vllm.gguf.planned import PlannedTensor

# vLLM's ReplicatedLinear layers and norms: every rank holds all of them
REPLICATED = (
    ".q_a_proj.",
    ".kv_a_proj_with_mqa.",
    ".indexer.",
    ".mlp.gate.",
    "norm.weight",
    ".eh_proj.",
)


@dataclass(frozen=True, slots=True)
class Footprint:
    """Packed parameters in bytes; float parameters in elements, for their type is chosen at start."""

    packed_sharded: int
    packed_replicated: int
    floats_sharded: int
    floats_replicated: int


def footprint(tensors: Iterable[PlannedTensor]) -> Footprint:
    """The footprint of the parameters made of `tensors`."""
    packed, floats = [0, 0], [0, 0]
    for planned in tensors:
        is_replicated = any(part in planned.target for part in REPLICATED)
        if planned.treatment is Treatment.KEEP:
            packed[is_replicated] += planned.nbytes
        else:
            floats[is_replicated] += prod(planned.shape)
    return Footprint(*packed, *floats)
