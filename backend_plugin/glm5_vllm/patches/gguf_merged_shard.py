"""Give each rank its own rows of a quantised layer that joins several tensors.

Symptom: with tensor parallelism the model answers nonsense (logprobs off by 4), and nothing is said.
Cause: vllm-gguf-plugin 0.0.5 takes the rank of a joined layer's part from an argument that vLLM does not pass, so every
rank holds rank 0's rows of gate_up_proj, while down_proj is cut by the right rank.
Change: the rank is this process's. Layers that are not cut (fused_qkv_a_proj) never ask for it.
Does not apply: one rank; float weights.
Remove when: vllm-gguf-plugin asks for the rank by itself (its change 106).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def apply() -> None:
    from vllm_gguf_plugin.quantization.params import _GGUFParamLoadMixin

    from glm5_vllm.patches import replace_attribute

    replace_attribute(_GGUFParamLoadMixin, "load_merged_column_weight", _of_this_rank)


def _of_this_rank(original: Callable[..., None]) -> Callable[..., None]:
    from vllm.distributed import get_tensor_model_parallel_rank

    @functools.wraps(original)
    def load_merged_column_weight(self: Any, loaded_weight: Any, **kwargs: Any) -> None:
        kwargs.setdefault("tp_rank", get_tensor_model_parallel_rank())
        original(self, loaded_weight, **kwargs)

    return load_merged_column_weight
