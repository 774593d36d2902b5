"""Which planned tensors become float layers under `Weights.SPEED`. Pure; gguf/hold.py does it to a loaded model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from glm5_vllm.gguf.file.quant_types import BY_NAME
from glm5_vllm.gguf.plan.names import FUSED_LINEARS, Treatment
from glm5_vllm.gguf.plan.planned import PlannedTensor

# a packed product of these takes longer than that of floats from 2 to 4 rows on (products/README.md)
HELD_AS_FLOAT = frozenset(BY_NAME[name] for name in ("Q8_0", "Q6_K"))
EMBEDDING = "embed_tokens."


def held_targets(tensors: Iterable[PlannedTensor]) -> frozenset[str]:
    """HF names of the dense layers whose parts are all of a type in `HELD_AS_FLOAT`."""
    layers: dict[object, list[PlannedTensor]] = defaultdict(list)
    for planned in tensors:
        if planned.treatment is Treatment.KEEP and not planned.is_experts and EMBEDDING not in planned.target:
            layers[_layer_of(planned)].append(planned)
    return frozenset(
        planned.target
        for parts in layers.values()
        if all(part.sources[0].quant in HELD_AS_FLOAT for part in parts)
        for planned in parts
    )


def _layer_of(planned: PlannedTensor) -> object:
    """The same for tensors that vLLM joins to one layer."""
    name = planned.sources[0].name.split(".", 2)[-1]
    group = next((number for number, names in enumerate(FUSED_LINEARS) if name in names), None)
    return planned.target if group is None else (planned.layer, group)
