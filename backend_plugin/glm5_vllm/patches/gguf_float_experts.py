"""Run routed experts as float if the file stores them as float.

Symptom: experts in F16, BF16 or F32 run one token and one expert at a time, or fail on mixed dtypes.
Cause: vllm-gguf-plugin treats every expert layer as quantised.
Change: expert layers that are float in the load plan get vLLM's own float method.
Does not apply: quantised experts.
Remove when: the plugin checks its list of unquantised modules for experts too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def apply() -> None:
    from vllm_gguf_plugin.quantization.config import GGUFConfig

    from glm5_vllm.patches import replace_attribute

    replace_attribute(GGUFConfig, "get_quant_method", _asking_for_experts_too)


def _asking_for_experts_too(original: Callable[..., Any]) -> Callable[..., Any]:
    from vllm.model_executor.layers.fused_moe import RoutedExperts

    @functools.wraps(original)
    def get_quant_method(self: Any, layer: Any, prefix: str) -> Any:
        # the layer's prefix is ...mlp.experts, possibly followed by the name of a module below it
        if isinstance(layer, RoutedExperts) and any(prefix.startswith(m) for m in self.unquantized_modules):
            from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import (
                UnquantizedFusedMoEMethod,
            )

            return UnquantizedFusedMoEMethod(layer.moe_config)
        return original(self, layer, prefix)

    return get_quant_method
