"""The list of patches, in the order in which they are applied."""

from __future__ import annotations

from glm5_vllm.patches import (
    cpu_indexer,
    cpu_instruction_sets,
    cpu_rotary_embedding,
    gguf_config_source,
    gguf_cpu_operations,
    gguf_draft_config,
    gguf_expert_grid,
    gguf_expert_products,
    gguf_float_experts,
    gguf_layer_rank,
    gguf_replicated_linear,
    vllm_distribution_name,
)


def apply_all() -> None:
    """Apply every patch that the platform needs, in order."""
    from vllm.platforms import current_platform

    vllm_distribution_name.apply()
    if current_platform.is_cpu():
        cpu_instruction_sets.apply()
        cpu_rotary_embedding.apply()
        cpu_indexer.apply()
        gguf_cpu_operations.apply()
    else:
        gguf_expert_products.apply()
    gguf_config_source.apply()
    gguf_draft_config.apply()
    gguf_expert_grid.apply()
    gguf_float_experts.apply()
    gguf_layer_rank.apply()
    gguf_replicated_linear.apply()


def apply_to_api_server() -> None:
    """Apply the patches that only the API server needs. Workers do not pay for their imports."""
    from glm5_vllm.patches import api_http_protocol, grammar_time_limit

    api_http_protocol.apply()
    grammar_time_limit.apply()
