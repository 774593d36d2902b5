"""Give the generic DSA model file an indexer in torch.

Symptom: GlmMoeDsaForCausalLM can't be built or run on CPU.
Cause: the stock Indexer quantises and scores with CUDA kernels. Its CPU branch takes another top-k than GLM-5's.
Change: the model file's class `Indexer` becomes `glm5_vllm.cpu.indexer.TorchIndexer`.
Does not apply: CUDA, which has its own model file (models/deepseek_v32/nvidia).
Remove when: vLLM's CPU platform serves index_topk 2048.
"""

from __future__ import annotations

from typing import Any


def apply() -> None:
    from vllm.model_executor.models import deepseek_v2

    from glm5_vllm.patches import replace_attribute

    replace_attribute(deepseek_v2, "Indexer", _torch_indexer)


def _torch_indexer(original: object) -> Any:
    from glm5_vllm.cpu.indexer import TorchIndexer

    return TorchIndexer
