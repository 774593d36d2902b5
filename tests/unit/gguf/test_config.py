"""config.json built from metadata against published values and against what transformers makes of it."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from glm5_vllm.gguf.file.splits import open_model
from glm5_vllm.gguf.huggingface.config import generation_config, hf_config
from glm5_vllm.gguf.huggingface.flags import COMMON, LATER
from glm5_vllm.gguf.huggingface.vocabulary import read_vocabulary
from glm5_vllm.gguf.model.hyperparameters import Hyperparameters, read_hyperparameters
from glm5_vllm.gguf.model.release import decide_release
from glm5_vllm.gguf.plan.planner import plan_load
from tests.support.tiny_gguf import write_tiny
from tests.support.tiny_spec import TinySpec

STOP_IDS = (154820, 154827, 154829)

# config.json of zai-org/GLM-5 and GLM-5.1; what the keys mean for the file is written in flags.py
GLM_5: dict[str, Any] = {
    "architectures": ["GlmMoeDsaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "dtype": "bfloat16",
    "eos_token_id": [154820, 154827, 154829], "first_k_dense_replace": 3, "hidden_act": "silu", "hidden_size": 6144,
    "index_head_dim": 128, "index_n_heads": 32, "index_topk": 2048, "indexer_rope_interleave": True,
    "intermediate_size": 12288, "kv_lora_rank": 512, "max_position_embeddings": 202752, "model_type": "glm_moe_dsa",
    "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 1, "n_routed_experts": 256, "n_shared_experts": 1,
    "norm_topk_prob": True, "num_attention_heads": 64, "num_experts_per_tok": 8, "num_hidden_layers": 78,
    "num_key_value_heads": 64, "num_nextn_predict_layers": 1, "pad_token_id": 154820, "q_lora_rank": 2048,
    "qk_head_dim": 256, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-05, "rope_interleave": True,
    "rope_parameters": {"rope_theta": 1000000, "rope_type": "default"}, "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid", "tie_word_embeddings": False, "topk_group": 1, "topk_method": "noaux_tc",
    "use_cache": True, "v_head_dim": 256, "vocab_size": 154880,
}  # fmt: skip
# what config.json of zai-org/GLM-5.2 says otherwise; the schedule is index_topk_freq 4 from index_skip_topk_offset 3
GLM_5_2: dict[str, Any] = GLM_5 | {
    "max_position_embeddings": 1048576,
    "rope_parameters": {"rope_theta": 8000000, "rope_type": "default"},
    "index_share_for_mtp_iteration": True,
    "moe_router_dtype": "float32",
    "indexer_types": ["full" if i < 3 or (i - 2) % 4 == 0 else "shared" for i in range(78)],
}


@pytest.fixture
def h(glm5: list[Path]) -> Hyperparameters:
    """The hyperparameters of GLM-5."""
    return read_hyperparameters(open_model(glm5[0]).header)


def config_of(h: Hyperparameters, glm5: list[Path]) -> dict[str, Any]:
    model = open_model(glm5[0])
    return hf_config(h, decide_release(model.header, h, model.tensors), STOP_IDS)


def test_glm5_as_published(h: Hyperparameters, glm5: list[Path]) -> None:
    """Each published value of GLM-5 and 5.1 comes out of the metadata or the table."""
    config = config_of(h, glm5)

    assert {key: config[key] for key in GLM_5} == GLM_5
    assert set(config["indexer_types"]) == {"full"}
    assert "index_topk_pattern" not in config


def test_glm5_2_as_published(h: Hyperparameters, glm5: list[Path]) -> None:
    """21 of GLM-5.2's layers run an indexer, in both readers' spelling."""
    model = open_model(glm5[0])
    h = replace(h, context_length=1048576, rope_theta=8e6)
    config = hf_config(h, decide_release(model.header, h, model.tensors, "5.2"), STOP_IDS)

    assert {key: config[key] for key in GLM_5_2} == GLM_5_2
    assert config["indexer_types"].count("full") == 21
    assert config["index_topk_pattern"] == "".join(kind[0].upper() for kind in GLM_5_2["indexer_types"])


def test_every_flag_has_a_reason() -> None:
    """Nothing is stated without a reason, and nothing twice."""
    flags = (*COMMON, *LATER)
    assert all(flag.reason for flag in flags)
    assert len(flags) == len({flag.key for flag in flags})


@pytest.mark.parametrize(
    "spec",
    [
        TinySpec(layers=1),
        TinySpec(layers=2, mtp=True, heads=2, experts=4, vocab=512),
        TinySpec(layers=4, shared_layers=(1, 3), index_heads=4),
    ],
    ids=["plain", "mtp", "shared"],
)
def test_config_of_a_file(spec: TinySpec, tmp_path: Path) -> None:
    """What is built from a file is what its publisher would have shipped, and transformers reads it so."""
    from transformers import GlmMoeDsaConfig

    written = write_tiny(tmp_path, spec)
    plan = plan_load(open_model(written.path))
    stop_ids = read_vocabulary(plan.model.header).stop_ids
    config = hf_config(plan.hyperparameters, plan.release, stop_ids)

    assert written.hf_config == config
    read = GlmMoeDsaConfig(**config).to_dict()
    assert {key: value for key, value in config.items() if read.get(key) != value} == {}


def test_the_publishers_sampling_is_the_default() -> None:
    """What the file says of sampling is what a request without an opinion gets; single precision is read as meant."""
    stops = {"eos_token_id": [7, 8], "pad_token_id": 7}
    said = {
        "general.sampling.temp": 1.0,
        "general.sampling.top_p": struct.unpack("f", struct.pack("f", 0.95))[0],
        "general.sampling.top_k": 40,
        "general.sampling.min_p": 0.0,
    }

    assert generation_config((7, 8), {}) == stops
    assert generation_config((7, 8), said) == stops | {
        "do_sample": True,
        "temperature": 1.0,
        "top_p": 0.95,
        "top_k": 40,
    }
    assert generation_config((7, 8), {"general.sampling.temp": "warm"}) == stops
