"""Replaces DeepGEMM's logits with the Triton indexer where DeepGEMM cannot run.

Symptom: the first prompt longer than index_topk ends with DeepGEMM's "Unsupported architecture", or with a failed JIT
compilation.
Cause: vLLM checks only that the package is installed. Its kernels exist for SM90, SM100 and SM120, and nvcc compiles
them on first use.
Change: our functions replace the three that vLLM imported.
Does not apply: where DeepGEMM runs.
Remove when: vLLM has its own path for SM89.
"""

from __future__ import annotations

import os
import shutil
from typing import Any

from glm5_vllm.patches import replace_attribute


def needs_triton_logits(capability: tuple[int, int], has_nvcc: bool) -> bool:
    """True on SM8x, and on SM12x if the image cannot compile DeepGEMM's kernels. Elsewhere DeepGEMM is faster."""
    major, _ = capability
    return major == 8 or (major == 12 and not has_nvcc)


def has_nvcc() -> bool:
    """Whether DeepGEMM would find a compiler."""
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    return shutil.which("nvcc") is not None or os.access(os.path.join(home, "bin", "nvcc"), os.X_OK)


def use_triton_logits() -> None:
    """Replace the functions that vLLM's indexer and its metadata builder call. May be called again."""
    from vllm.model_executor.layers import sparse_attn_indexer
    from vllm.v1.attention.backends.mla import indexer

    def instead(name: str) -> Any:
        def function(*args: Any, **kwargs: Any) -> Any:
            # import the kernels on first use, because a front end without a card never needs them
            from glm5_vllm.indexer import logits

            return getattr(logits, name)(*args, **kwargs)

        return lambda _original: function

    replace_attribute(sparse_attn_indexer, "fp8_fp4_mqa_logits", instead("mqa_logits"))
    replace_attribute(sparse_attn_indexer, "fp8_fp4_paged_mqa_logits", instead("paged_mqa_logits"))
    replace_attribute(indexer, "get_paged_mqa_logits_metadata", instead("paged_mqa_logits_metadata"))
