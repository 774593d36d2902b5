"""Keep the decode kernel of quantised experts within CUDA's grid.

Symptom: a file with IQ experts ends with "CUDA error: invalid configuration argument" while vLLM profiles its memory.
Cause: such experts have no kernel for many rows, so vllm-gguf-plugin uses the decode kernel for every batch. That kernel
has one block in z for each of tokens * top_k pairs. CUDA allows 65,535. vLLM's 8192 tokens with 8 experts are 65,536.
Change: more pairs take several launches.
Does not apply: quant types with a kernel for many rows, and batches that fit into one launch.
Remove when: the plugin splits launches by itself (its change 125), or has its own kernels for many rows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

# largest number of blocks of a CUDA grid in z
GRID_Z = 65_535


def apply() -> None:
    from vllm_gguf_plugin import ops

    from glm5_vllm.patches import replace_attribute

    replace_attribute(ops, "ggml_moe_a8_vec", _in_launches_that_fit)


def _in_launches_that_fit(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(original)
    def ggml_moe_a8_vec(
        x: torch.Tensor,
        weights: torch.Tensor,
        topk_ids: torch.Tensor,
        top_k: int,
        quant_type: int,
        row: int,
        tokens: int,
    ) -> torch.Tensor:
        step = GRID_Z // top_k
        if tokens <= step:
            return original(x, weights, topk_ids, top_k, quant_type, row, tokens)
        # the second product of a layer treats every pair as a token of one expert, with the same ids
        ids = topk_ids.view(tokens, top_k)
        parts = zip(x.split(step), ids.split(step), strict=True)
        return torch.cat(
            [original(rows, weights, of, top_k, quant_type, row, rows.shape[0]) for rows, of in parts]
        )

    return ggml_moe_a8_vec
