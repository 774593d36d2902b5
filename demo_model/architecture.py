"""The demo model's shape: GLM-5's architecture with its real head sizes, and few of everything else.

Next hop: train.py builds it, export.py writes its numbers into the file.
"""

from transformers import GlmMoeDsaConfig, PreTrainedTokenizerFast

from demo_model.vocabulary import END_OF_TEXT, END_OF_TURN


def config(tokenizer: PreTrainedTokenizerFast) -> GlmMoeDsaConfig:
    """The configuration, complete enough for transformers and for vLLM."""
    layers = 3
    return GlmMoeDsaConfig(
        architectures=["GlmMoeDsaForCausalLM"],
        vocab_size=len(tokenizer),
        hidden_size=256,
        num_hidden_layers=layers,
        num_nextn_predict_layers=0,
        max_position_embeddings=4096,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_theta": 1e6, "rope_type": "default"},
        # as in GLM-5: what the attention kernels are built for
        kv_lora_rank=512,
        qk_rope_head_dim=64,
        qk_nope_head_dim=192,
        v_head_dim=256,
        q_lora_rank=256,
        num_attention_heads=4,
        num_key_value_heads=4,
        rope_interleave=True,
        # a conversation, a system prompt or a tool is longer than 64 tokens, so the selection is at work in the demo
        index_topk=64,
        index_n_heads=32,
        index_head_dim=128,
        indexer_rope_interleave=True,
        indexer_types=["full"] * layers,
        # halves of 512 are whole blocks of a K-quant, so the file also loads on two ranks
        intermediate_size=512,
        moe_intermediate_size=512,
        first_k_dense_replace=1,
        moe_layer_freq=1,
        n_routed_experts=8,
        num_experts_per_tok=2,
        n_shared_experts=1,
        n_group=1,
        topk_group=1,
        topk_method="noaux_tc",
        scoring_func="sigmoid",
        norm_topk_prob=True,
        routed_scaling_factor=2.5,
        bos_token_id=None,
        pad_token_id=tokenizer.convert_tokens_to_ids(END_OF_TEXT),
        eos_token_id=tokenizer.convert_tokens_to_ids(list(END_OF_TURN)),
    )
