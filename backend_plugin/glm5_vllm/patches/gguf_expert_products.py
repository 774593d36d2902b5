"""Multiply routed experts by the kernel that is fastest for the number of tokens.

Symptom: a decode step of 64 tokens spends 2.4 of 2.8 ms of a layer in the experts, where the bytes take 0.16 ms.
Cause: vllm-gguf-plugin keeps its vector kernel up to 64 tokens whatever the product, and has one for more tokens that
takes 17 times the time of a product of floats at 8192.
Change: `glm5_vllm.products.experts` takes the place of its `fused_moe_gguf`.
Does not apply: CPU, which has operations of its own.
Remove when: the plugin chooses by product and number of tokens.
"""

from __future__ import annotations


def apply() -> None:
    from vllm_gguf_plugin import quantization

    from glm5_vllm.patches import replace_attribute
    from glm5_vllm.products import experts

    replace_attribute(quantization, "fused_moe_gguf", lambda _: experts.routed_experts_operation)
