"""Let a quantised weight be loaded into a ReplicatedLinear.

Symptom: "Tried to load weights of size ... to a parameter of size torch.Size([0])" for the indexer's wq_b.
Cause: vLLM's ReplicatedLinear.weight_loader compares sizes first, but a GGUF parameter gets its size when it is loaded.
Change: GGUFLinearMethod gives such layers a loader that stores the whole tensor. Each rank has a full copy.
Does not apply: other layers, whose loaders know GGUF parameters.
Remove when: vllm-gguf-plugin loads into ReplicatedLinear.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def apply() -> None:
    from vllm_gguf_plugin.quantization.linear import GGUFLinearMethod

    from glm5_vllm.patches import replace_attribute

    replace_attribute(GGUFLinearMethod, "create_weights", _storing_whole_if_replicated)


def _storing_whole_if_replicated(original: Callable[..., None]) -> Callable[..., None]:
    from vllm.model_executor.layers.linear import ReplicatedLinear

    @functools.wraps(original)
    def create_weights(self: Any, layer: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(layer, ReplicatedLinear):
            kwargs["weight_loader"] = _store_whole
        original(self, layer, *args, **kwargs)

    return create_weights


def _store_whole(param: Any, loaded_weight: Any) -> None:
    param._store(loaded_weight)
