"""What a GLM-5 config.json says that a GGUF does not carry, each with the reason. Data for config.py."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Flag:
    """One key of config.json and why its value is safe to state."""

    key: str
    value: str | int | float | bool
    reason: str


COMMON = (
    Flag(
        "topk_method",
        "noaux_tc",
        "exp_probs_b is this method's bias; vLLM makes a parameter for it in no other",
    ),
    Flag("scoring_func", "sigmoid", "expert_gating_func 2 in the file, checked when it is read"),
    Flag(
        "moe_layer_freq",
        1,
        "every block after the leading dense ones has experts; the plan misses them otherwise",
    ),
    Flag("rope_interleave", True, "converters keep the order of rows, in which rope pairs neighbours"),
    Flag(
        "indexer_rope_interleave",
        True,
        "unlike DeepSeek-V3.2; wrong answers only beyond index_topk tokens if lost",
    ),
    Flag("hidden_act", "silu", "config.json of all releases; llama.cpp's graph has no other"),
    Flag("attention_bias", False, "no bias tensors in the file; one would be refused as unknown"),
    Flag("attention_dropout", 0.0, "inference"),
    Flag("tie_word_embeddings", False, "output.weight is required of the file"),
    Flag("dtype", "bfloat16", "the type the weights were published in"),
    Flag("use_cache", True, "inference"),
)

# of GLM-5.2 and later
LATER = (
    Flag(
        "index_share_for_mtp_iteration",
        True,
        "config.json: the draft block reuses its first selection",
    ),
    Flag("moe_router_dtype", "float32", "config.json: the router's scores are computed in float32"),
)
