"""The metadata of a tiny model's GGUF, and the config.json a publisher would ship with it."""

from __future__ import annotations

from typing import Any

import gguf

from tests.support.tiny_spec import (
    EPSILON,
    EXPERT_SCALE,
    INDEX_DIM,
    KV_LORA,
    NOPE,
    ROPE,
    THETA,
    VALUE,
    TinySpec,
)
from tests.support.tiny_tokenizer import TinyTokenizer


def write_metadata(writer: gguf.GGUFWriter, spec: TinySpec, tokenizer: TinyTokenizer) -> None:
    writer.add_type("model")
    writer.add_name(spec.name)
    writer.add_block_count(spec.layers + spec.mtp)
    writer.add_context_length(spec.context)
    writer.add_embedding_length(spec.hidden)
    writer.add_feed_forward_length(spec.dense_intermediate)
    writer.add_vocab_size(len(tokenizer.tokens))
    writer.add_head_count(spec.heads)
    writer.add_head_count_kv(1)
    writer.add_key_length(KV_LORA + ROPE)
    writer.add_value_length(KV_LORA)
    writer.add_key_length_mla(NOPE + ROPE)
    writer.add_value_length_mla(VALUE)
    writer.add_q_lora_rank(spec.q_lora)
    writer.add_kv_lora_rank(KV_LORA)
    writer.add_layer_norm_rms_eps(EPSILON)
    writer.add_rope_freq_base(THETA)
    writer.add_rope_dimension_count(ROPE)
    writer.add_leading_dense_block_count(spec.dense_layers)
    writer.add_expert_count(spec.experts)
    writer.add_expert_used_count(spec.experts_used)
    writer.add_expert_shared_count(1)
    writer.add_expert_feed_forward_length(spec.expert_intermediate)
    writer.add_expert_group_count(1)
    writer.add_expert_group_used_count(1)
    writer.add_expert_weights_scale(EXPERT_SCALE)
    writer.add_expert_weights_norm(True)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    writer.add_indexer_head_count(spec.index_heads)
    writer.add_indexer_key_length(INDEX_DIM)
    writer.add_indexer_top_k(spec.index_topk)
    if spec.mtp:
        writer.add_nextn_predict_layers(1)
    if spec.write_indexer_types:
        # the gguf package 0.19 has no method for this key; llama.cpp writes one boolean a layer
        writer.add_array(
            "glm-dsa.attention.indexer.types", [i not in spec.shared_layers for i in range(spec.layers)]
        )
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(tokenizer.pre)
    writer.add_token_list(list(tokenizer.tokens))
    writer.add_token_types(list(tokenizer.types))
    writer.add_token_merges(list(tokenizer.merges))
    writer.add_chat_template(tokenizer.template)
    for key, token in (("bos", "[gMASK]"), ("eos", "<|endoftext|>"), ("eot", "<|user|>"), ("pad", "[MASK]")):
        if token in tokenizer.tokens:
            getattr(writer, f"add_{key}_token_id")(tokenizer.id_of(token))


def hf_config(spec: TinySpec, tokenizer: TinyTokenizer) -> dict[str, Any]:
    """The config.json that a publisher would ship with this model, spelt out by hand."""
    types = ["shared" if layer in spec.shared_layers else "full" for layer in range(spec.layers)]
    stop = [
        tokenizer.id_of(t) for t in ("<|endoftext|>", "<|user|>", "<|observation|>") if t in tokenizer.tokens
    ]
    config: dict[str, Any] = {
        "architectures": ["GlmMoeDsaForCausalLM"],
        "model_type": "glm_moe_dsa",
        "dtype": "bfloat16",
        "vocab_size": len(tokenizer.tokens),
        "hidden_size": spec.hidden,
        "intermediate_size": spec.dense_intermediate,
        "moe_intermediate_size": spec.expert_intermediate,
        "num_hidden_layers": spec.layers,
        "num_nextn_predict_layers": int(spec.mtp),
        "num_attention_heads": spec.heads,
        "num_key_value_heads": spec.heads,
        "q_lora_rank": spec.q_lora,
        "kv_lora_rank": KV_LORA,
        "qk_nope_head_dim": NOPE,
        "qk_rope_head_dim": ROPE,
        "qk_head_dim": NOPE + ROPE,
        "v_head_dim": VALUE,
        "head_dim": ROPE,
        "n_routed_experts": spec.experts,
        "n_shared_experts": 1,
        "num_experts_per_tok": spec.experts_used,
        "first_k_dense_replace": spec.dense_layers,
        "moe_layer_freq": 1,
        "n_group": 1,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "routed_scaling_factor": EXPERT_SCALE,
        "norm_topk_prob": True,
        "index_topk": spec.index_topk,
        "index_n_heads": spec.index_heads,
        "index_head_dim": INDEX_DIM,
        "indexer_types": types,
        "indexer_rope_interleave": True,
        "rope_interleave": True,
        "rope_parameters": {"rope_theta": THETA, "rope_type": "default"},
        "max_position_embeddings": spec.context,
        "rms_norm_eps": EPSILON,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": False,
        "eos_token_id": stop,
        "pad_token_id": stop[0] if stop else None,
        "bos_token_id": None,
        "use_cache": True,
    }
    if spec.shared_layers:
        config["index_topk_pattern"] = "".join(kind[0].upper() for kind in types)
    return config
