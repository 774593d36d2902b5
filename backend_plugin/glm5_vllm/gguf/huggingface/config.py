"""config.json and generation_config.json of GlmMoeDsaForCausalLM from a file's hyperparameters. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from glm5_vllm.gguf.huggingface.flags import COMMON, LATER
from glm5_vllm.gguf.model.hyperparameters import Hyperparameters
from glm5_vllm.gguf.model.release import FULL, SHARED, Release


def hf_config(h: Hyperparameters, release: Release, stop_ids: Sequence[int]) -> dict[str, Any]:
    """The values of config.json.

    Args:
        h: the file's hyperparameters.
        release: which GLM-5 it is, with the indexer type of each layer.
        stop_ids: ids of the tokens that end a turn; the first one also pads.
    """
    config: dict[str, Any] = {
        "architectures": ["GlmMoeDsaForCausalLM"],
        "model_type": "glm_moe_dsa",
        "vocab_size": h.vocab,
        "hidden_size": h.hidden,
        "intermediate_size": h.dense_intermediate,
        "moe_intermediate_size": h.expert_intermediate,
        "num_hidden_layers": h.layers,
        "num_nextn_predict_layers": h.mtp_layers,
        "num_attention_heads": h.heads,
        # the file says 1, for it stores the absorbed form; the published config counts the heads before absorption
        "num_key_value_heads": h.heads,
        "q_lora_rank": h.q_lora,
        "kv_lora_rank": h.kv_lora,
        "qk_nope_head_dim": h.nope_dim,
        "qk_rope_head_dim": h.rope_dim,
        "qk_head_dim": h.head_dim,
        "v_head_dim": h.value_dim,
        "head_dim": h.rope_dim,
        "n_routed_experts": h.experts,
        "n_shared_experts": h.shared_experts,
        "num_experts_per_tok": h.experts_used,
        "first_k_dense_replace": h.dense_layers,
        "n_group": h.expert_groups,
        "topk_group": h.expert_groups_used,
        "routed_scaling_factor": _shortest(h.expert_scale),
        "norm_topk_prob": h.normalize_experts,
        "index_topk": h.indexer_top_k,
        "index_n_heads": h.indexer_heads,
        "index_head_dim": h.indexer_dim,
        "indexer_types": list(release.indexer_types),
        "max_position_embeddings": h.context_length,
        "rms_norm_eps": _shortest(h.rms_epsilon),
        "rope_parameters": {"rope_theta": _shortest(h.rope_theta), "rope_type": "default"},
        "eos_token_id": list(stop_ids),
        "pad_token_id": stop_ids[0],
        "bos_token_id": None,
    }
    config |= {flag.key: flag.value for flag in (*COMMON, *(LATER if release.is_later else ()))}
    if SHARED in release.indexer_types:
        # transformers reads indexer_types, vLLM reads the pattern
        config["index_topk_pattern"] = "".join("F" if kind == FULL else "S" for kind in release.indexer_types)
    return config


# how the publisher samples: GGUF's key, and that of generation_config.json
SAMPLING = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_p": "top_p",
    "general.sampling.top_k": "top_k",
    "general.sampling.min_p": "min_p",
}


def generation_config(stop_ids: Sequence[int], metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The values of generation_config.json: what ends an answer, and how to sample where a request does not say.

    Args:
        stop_ids: ids of the tokens that end a turn; the first one also pads.
        metadata: the file's; its sampling defaults are optional, and llama.cpp takes them too.
    """
    config: dict[str, Any] = {"eos_token_id": list(stop_ids), "pad_token_id": stop_ids[0]}
    found = {name: metadata.get(key) for key, name in SAMPLING.items()}
    # 0 turns each of them off, as leaving it out does
    ints = {name: value for name, value in found.items() if type(value) is int and value > 0}
    floats = {name: _shortest(value) for name, value in found.items() if type(value) is float and value > 0}
    # transformers heeds them only with do_sample
    return config | ({"do_sample": True, **ints, **floats} if ints or floats else {})


def _shortest(single: float) -> float:
    """The decimal that was meant: files hold single precision, in which 1e-5 reads 9.999999747e-06."""
    return float(f"{single:.7g}")
