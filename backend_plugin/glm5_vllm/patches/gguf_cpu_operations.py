"""Give vllm-gguf-plugin torch operations where it has no kernels.

Symptom: no GGUF model runs on CPU.
Cause: the plugin dequantises and multiplies in CUDA and Triton only.
Change: its dequantise, multiply and mixture-of-experts entries become those of `glm5_vllm.cpu.gguf_operations`.
Does not apply: CUDA.
Remove when: the plugin has CPU operations.
"""

from __future__ import annotations


def apply() -> None:
    from vllm_gguf_plugin import ops, quantization

    from glm5_vllm.cpu import gguf_operations
    from glm5_vllm.patches import replace_attribute

    replace_attribute(ops, "ggml_dequantize", lambda _: gguf_operations.dequantize)
    # both multiply entries have one signature: few rows and many rows are the same to torch
    replace_attribute(ops, "ggml_mul_mat_vec_a8", lambda _: gguf_operations.multiply)
    replace_attribute(ops, "ggml_mul_mat_a8", lambda _: gguf_operations.multiply)
    replace_attribute(quantization, "fused_moe_gguf", lambda _: gguf_operations.mixture_of_experts)
