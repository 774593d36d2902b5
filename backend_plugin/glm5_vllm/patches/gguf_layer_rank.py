"""Give each rank the rows of a quantised layer that the layer says it has.

Symptom: with tensor parallelism the model answers nonsense (logprobs off by 4) without an error. With decode context
parallelism the queries have the wrong shape.
Cause: vllm-gguf-plugin 0.0.5 splits a layer's rows by the process's rank, and those of a joined layer (gate_up_proj) by
rank 0. A layer may be split otherwise: q_b_proj has the rows of a whole decode context group, because vLLM copies it
there for this model (set_dcp_defaults in its models/config.py).
Change: the layer gives rank and number of ranks.
Does not apply: one rank, float weights, and layers that are not split (fused_qkv_a_proj).
Remove when: vllm-gguf-plugin asks the layer. Its change 106 does so for joined layers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def apply() -> None:
    from vllm_gguf_plugin.quantization.linear import GGUFLinearMethod
    from vllm_gguf_plugin.quantization.params import _GGUFParamLoadMixin

    from glm5_vllm.patches import replace_attribute

    replace_attribute(GGUFLinearMethod, "create_weights", _telling_the_rank)
    replace_attribute(_GGUFParamLoadMixin, "load_column_parallel_weight", _rows_of_the_layer)
    replace_attribute(_GGUFParamLoadMixin, "load_merged_column_weight", _joined_rows_of_the_layer)


def _telling_the_rank(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def create_weights(self: Any, layer: Any, *args: Any, **kwargs: Any) -> None:
        original(self, layer, *args, **kwargs)
        for param in (layer.qweight, layer.qweight_type):
            # vLLM's own parameters have them under these names
            param.tp_rank, param.tp_size = layer.tp_rank, layer.tp_size

    return create_weights


def _rows_of_the_layer(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def load_column_parallel_weight(self: Any, loaded_weight: Any) -> None:
        rows = loaded_weight.shape[0] // self.tp_size
        self._store(loaded_weight.narrow(0, self.tp_rank * rows, rows))

    return load_column_parallel_weight


def _joined_rows_of_the_layer(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def load_merged_column_weight(self: Any, loaded_weight: Any, **kwargs: Any) -> None:
        original(self, loaded_weight, **{**kwargs, "tp_rank": self.tp_rank})

    return load_merged_column_weight
