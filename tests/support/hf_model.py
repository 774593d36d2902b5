"""GLM-5-architecture models with random weights and their transformers logprobs: the oracle of the engine tests."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import GlmMoeDsaConfig, GlmMoeDsaForCausalLM

from tests.support.engine import Completion

VOCAB = 2048


def random_config(index_topk: int, **changes: object) -> GlmMoeDsaConfig:
    """GLM-5's head dims and indexer over a small hidden size."""
    values: dict[str, object] = {
        "vocab_size": VOCAB,
        "hidden_size": 256,
        "intermediate_size": 512,
        "moe_intermediate_size": 128,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "n_shared_experts": 1,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "mlp_layer_types": ["dense", "sparse", "sparse"],
        "moe_layer_freq": 1,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "kv_lora_rank": 512,
        "q_lora_rank": 256,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 192,
        "v_head_dim": 256,
        "index_topk": index_topk,
        "index_head_dim": 128,
        "index_n_heads": 32,
        "indexer_rope_interleave": True,
        "max_position_embeddings": 4096,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "initializer_range": 0.05,
        "dtype": "float32",
    }
    return GlmMoeDsaConfig(**{**values, **changes})


def save_random_model(folder: Path, config: GlmMoeDsaConfig, seed: int = 1) -> None:
    """Write a model with random weights, router bias included, in HF format."""
    torch.manual_seed(seed)
    model = GlmMoeDsaForCausalLM(config).float()
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.copy_(torch.randn_like(buffer) * 0.05)
    model.save_pretrained(folder)


def random_prompts(lengths: tuple[int, ...], seed: int = 0) -> list[list[int]]:
    rng = random.Random(seed)
    return [[1] + [rng.randrange(8, VOCAB) for _ in range(n - 1)] for n in lengths]


def largest_logprob_difference(
    model: GlmMoeDsaForCausalLM, prompts: list[list[int]], completions: list[Completion]
) -> list[float]:
    """Per prompt, the largest difference between the engine's top logprobs and transformers', teacher-forced."""
    largest = []
    for prompt, completion in zip(prompts, completions, strict=True):
        with torch.no_grad():
            tokens = torch.tensor([prompt + completion.tokens], device=model.device)
            logits = model(tokens, use_cache=False).logits[0].float().cpu()
        logprobs = logits.log_softmax(-1)[len(prompt) - 1 :]
        differences = [
            abs(float(logprobs[i][t]) - p)
            for i, step in enumerate(completion.logprobs)
            for t, p in step.items()
        ]
        # torch's, because python's max may pass over a NaN
        largest.append(float(torch.tensor(differences).max()))
    return largest


def draft_tokens(
    main: GlmMoeDsaForCausalLM, mtp: dict[str, Any], tokens: list[int], from_length: int
) -> list[int]:
    """What multi-token prediction proposes after each prefix of `tokens` of at least `from_length`, in float32.

    The block is DeepSeek-V3's (arXiv 2412.19437, equations 21 to 23): it reads the main model's state at a position and
    the embedding of the token after it. As in vLLM, the embedding at position 0 is zero.

    Args:
        main: the main model.
        mtp: the block's weights by HF name without the layer's prefix.
        tokens: prompt and continuation.
        from_length: the shortest prefix.
    """
    weights = {name: torch.from_numpy(np.ascontiguousarray(values)) for name, values in mtp.items()}
    block = GlmMoeDsaForCausalLM(_one_sparse_layer(main.config)).float().eval()
    taken = {
        name: weights[name.removeprefix("model.layers.0.")]
        for name in block.state_dict()
        if name.startswith("model.layers.0.") and ".experts." not in name
    }
    for part in ("gate_up", "down"):
        names = [part] if part == "down" else ["gate", "up"]
        taken[f"model.layers.0.mlp.experts.{part}_proj"] = torch.stack(
            [
                torch.cat([weights[f"mlp.experts.{expert}.{name}_proj.weight"] for name in names])
                for expert in range(main.config.n_routed_experts)
            ]
        )
    taken["model.norm.weight"] = weights["shared_head.norm.weight"]
    taken["lm_head.weight"] = main.lm_head.weight
    missing = block.load_state_dict(taken, strict=False).missing_keys
    assert missing == ["model.embed_tokens.weight"], missing
    with torch.no_grad():
        states = main.model(torch.tensor([tokens[:-1]]), use_cache=False).last_hidden_state
        embedded = main.model.embed_tokens(torch.tensor([tokens[1:]]))
        embedded[:, 0] = 0
        joined = torch.cat(
            [_norm(embedded, weights["enorm.weight"], main), _norm(states, weights["hnorm.weight"], main)], -1
        )
        logits = block(inputs_embeds=joined @ weights["eh_proj.weight"].T, use_cache=False).logits[0]
    return logits[from_length - 2 :].argmax(-1).tolist()


def _one_sparse_layer(config: GlmMoeDsaConfig) -> GlmMoeDsaConfig:
    values = {name: value for name, value in config.to_dict().items() if name != "layer_types"} | {
        "num_hidden_layers": 1, "first_k_dense_replace": 0, "mlp_layer_types": ["sparse"], "indexer_types": ["full"],
    }  # fmt: skip
    return GlmMoeDsaConfig(**values)


def _norm(values: torch.Tensor, weight: torch.Tensor, model: GlmMoeDsaForCausalLM) -> torch.Tensor:
    return torch.nn.functional.rms_norm(values, weight.shape, weight, model.config.rms_norm_eps)


def load_float32(folder: Path) -> GlmMoeDsaForCausalLM:
    return GlmMoeDsaForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()


def without_sparsity(model: GlmMoeDsaForCausalLM) -> GlmMoeDsaForCausalLM:
    """The same model attending to everything: the control that shows a parity test can fail."""
    for layer in model.model.layers:
        layer.self_attn.indexer.index_topk = 1 << 20
    return model
