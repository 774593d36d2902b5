"""Writes the trained model as glm-dsa GGUF splits, as llama.cpp's converter lays them out.

Owns the quant type of each tensor. Next hop: reference.py reads the splits back.
"""

from pathlib import Path
from typing import Final

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as QT
from transformers import GlmMoeDsaConfig, GlmMoeDsaForCausalLM, PreTrainedTokenizerFast

from demo_model import vocabulary
from demo_model.pack import quantize

NAME: Final = "glm5-demo"
SPLITS: Final = 3

# the mix of public GLM-5 files: Q8_0 for attention, Q4_K for gate and up, Q5_K and Q6_K for down; a few matrices
# of attention are smaller so that every type occurs in dense layers too
TYPES: Final = {
    "token_embd": QT.Q6_K,
    "output": QT.Q6_K,
    "attn_q_a": QT.Q8_0,
    "attn_q_b": QT.Q8_0,
    "attn_kv_a_mqa": QT.Q8_0,
    # rows of 192 values are no whole K-quant block
    "attn_k_b": QT.Q8_0,
    "attn_v_b": QT.Q5_K,
    "attn_output": QT.Q5_K,
    "indexer.attn_q_b": QT.Q6_K,
    "indexer.attn_k": QT.Q8_0,
    "indexer.proj": QT.F32,
    "ffn_gate": QT.Q4_K,
    "ffn_up": QT.Q4_K,
    "ffn_down": QT.Q6_K,
    "ffn_gate_inp": QT.F32,
    "ffn_gate_shexp": QT.Q8_0,
    "ffn_up_shexp": QT.Q8_0,
    "ffn_down_shexp": QT.Q8_0,
    "ffn_gate_exps": QT.Q4_K,
    "ffn_up_exps": QT.Q4_K,
}
# down experts of odd and even layers, so that both common types occur
DOWN_EXPERTS: Final = (QT.Q6_K, QT.Q5_K)


def quant_type(name: str, shape: tuple[int, ...]) -> QT:
    """Type of a tensor by its GGUF name; vectors stay F32."""
    if len(shape) == 1:
        return QT.F32
    parts = name.removesuffix(".weight").split(".")
    kind = ".".join(parts[2:]) if parts[0] == "blk" else parts[0]
    if kind == "ffn_down_exps":
        return DOWN_EXPERTS[int(parts[1]) % 2]
    return TYPES[kind]


def gguf_tensors(model: GlmMoeDsaForCausalLM) -> dict[str, np.ndarray]:
    """All weights under their GGUF names, float32, in the file's shapes."""
    config = model.config
    out = {
        "token_embd.weight": model.model.embed_tokens.weight,
        "output_norm.weight": model.model.norm.weight,
        "output.weight": model.lm_head.weight,
    }
    for i, layer in enumerate(model.model.layers):
        attention, indexer, mlp = layer.self_attn, layer.self_attn.indexer, layer.mlp
        kv_b = attention.kv_b_proj.weight.unflatten(0, (config.num_attention_heads, -1))
        k_b, v_b = kv_b.split([config.qk_nope_head_dim, config.v_head_dim], dim=1)
        block = {
            "attn_norm": layer.input_layernorm.weight,
            "attn_q_a": attention.q_a_proj.weight,
            "attn_q_a_norm": attention.q_a_layernorm.weight,
            "attn_q_b": attention.q_b_proj.weight,
            "attn_kv_a_mqa": attention.kv_a_proj_with_mqa.weight,
            "attn_kv_a_norm": attention.kv_a_layernorm.weight,
            "attn_k_b": k_b.transpose(1, 2),
            "attn_v_b": v_b,
            "attn_output": attention.o_proj.weight,
            "indexer.attn_q_b": indexer.wq_b.weight,
            "indexer.attn_k": indexer.wk.weight,
            "indexer.k_norm": indexer.k_norm.weight,
            "indexer.proj": indexer.weights_proj.weight,
            "ffn_norm": layer.post_attention_layernorm.weight,
        }
        if i < config.first_k_dense_replace:
            dense, suffix = mlp, ""
        else:
            dense, suffix = mlp.shared_experts, "_shexp"
            gate, up = mlp.experts.gate_up_proj.chunk(2, dim=1)
            block |= {
                "ffn_gate_inp": mlp.gate.weight,
                "ffn_gate_exps": gate,
                "ffn_up_exps": up,
                "ffn_down_exps": mlp.experts.down_proj,
            }
            out[f"blk.{i}.exp_probs_b.bias"] = mlp.gate.e_score_correction_bias
        block |= {
            f"ffn_gate{suffix}": dense.gate_proj.weight,
            f"ffn_up{suffix}": dense.up_proj.weight,
            f"ffn_down{suffix}": dense.down_proj.weight,
        }
        out |= {f"blk.{i}.{name}.weight": tensor for name, tensor in block.items()}
        out[f"blk.{i}.indexer.k_norm.bias"] = indexer.k_norm.bias
    return {name: np.ascontiguousarray(t.detach().to(torch.float32).numpy()) for name, t in out.items()}


def write(model: GlmMoeDsaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> list[Path]:
    """Pack and write the splits; returns their paths in order."""
    tensors = gguf_tensors(model)
    writer = gguf.GGUFWriter(folder / f"{NAME}.gguf", "glm-dsa", split_max_tensors=-(-len(tensors) // SPLITS))
    add_model(writer, model.config)
    add_tokenizer(writer, tokenizer)
    for name, values in tensors.items():
        qtype = quant_type(name, values.shape)
        writer.add_tensor(name, quantize(values, qtype), raw_dtype=qtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(folder.glob(f"{NAME}-*-of-{SPLITS:05d}.gguf"))


def add_model(writer: gguf.GGUFWriter, config: GlmMoeDsaConfig) -> None:
    """The keys that glm-dsa.cpp and loaders read."""
    writer.add_type("model")
    writer.add_name("GLM-5 architecture demo model")
    writer.add_description("Answers questions about glm5-service; made by demo_model/train.py")
    writer.add_license("apache-2.0")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_K_M)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_vocab_size(config.vocab_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_nextn_predict_layers(0)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    # after absorption all heads share one latent: attention with a single KV head of 512 + 64
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(1)
    writer.add_key_length(config.kv_lora_rank + config.qk_rope_head_dim)
    writer.add_value_length(config.kv_lora_rank)
    writer.add_key_length_mla(config.qk_nope_head_dim + config.qk_rope_head_dim)
    writer.add_value_length_mla(config.v_head_dim)
    writer.add_q_lora_rank(config.q_lora_rank)
    writer.add_kv_lora_rank(config.kv_lora_rank)
    writer.add_rope_dimension_count(config.qk_rope_head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_indexer_head_count(config.index_n_heads)
    writer.add_indexer_key_length(config.index_head_dim)
    writer.add_indexer_top_k(config.index_topk)
    writer.add_leading_dense_block_count(config.first_k_dense_replace)
    writer.add_expert_count(config.n_routed_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_expert_shared_count(config.n_shared_experts)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    writer.add_expert_weights_scale(config.routed_scaling_factor)
    writer.add_expert_weights_norm(config.norm_topk_prob)
    writer.add_expert_group_count(config.n_group)
    writer.add_expert_group_used_count(config.topk_group)


def add_tokenizer(writer: gguf.GGUFWriter, tokenizer: PreTrainedTokenizerFast) -> None:
    """The vocabulary, the special ids and the chat template."""
    tokens, types = vocabulary.tokens_and_types(tokenizer.backend_tokenizer)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(vocabulary.PRE_TOKENIZER)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(vocabulary.merges(tokenizer.backend_tokenizer))
    identity = tokenizer.convert_tokens_to_ids
    writer.add_bos_token_id(identity("[gMASK]"))
    writer.add_eos_token_id(identity(vocabulary.END_OF_TEXT))
    writer.add_unk_token_id(identity(vocabulary.END_OF_TEXT))
    writer.add_pad_token_id(identity(vocabulary.END_OF_TEXT))
    writer.add_eot_token_id(identity("<|user|>"))
    writer.add_eom_token_id(identity("<|observation|>"))
    # the chat template begins with [gMASK]<sop> itself
    writer.add_add_bos_token(False)
    writer.add_chat_template(vocabulary.CHAT_TEMPLATE)
