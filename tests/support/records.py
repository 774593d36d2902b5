"""Whole records of the plugin for tests of the service, with the few facts that a test is about."""

from __future__ import annotations

from typing import Any

from glm5_service.contracts.attestation import Attestation
from glm5_service.contracts.model_report import Hyperparameters

GLM5_SIZES = {
    "layers": 78, "mtp_layers": 1, "dense_layers": 3, "context_length": 202752, "hidden": 6144,
    "dense_intermediate": 12288, "expert_intermediate": 2048, "vocab": 154880, "heads": 64, "q_lora": 2048,
    "kv_lora": 512, "rope_dim": 64, "nope_dim": 192, "value_dim": 256, "experts": 256, "experts_used": 8,
    "shared_experts": 1, "expert_groups": 1, "expert_groups_used": 1, "expert_scale": 2.5,
    "normalize_experts": True, "indexer_heads": 32, "indexer_dim": 128, "indexer_top_k": 2048,
    "rms_epsilon": 1e-5, "rope_theta": 1e6,
}  # fmt: skip


def hyperparameters(**sizes: Any) -> Hyperparameters:
    """GLM-5's, but for `sizes`."""
    return Hyperparameters.model_validate(GLM5_SIZES | sizes)


def attestation(rank: int, backend: str, **facts: Any) -> Attestation:
    """What a rank attests on a CPU, but for `facts`."""
    return Attestation.model_validate(
        {
            "schema": 1,
            "rank": rank,
            "backend": backend,
            "backend_class": f"some.module.{backend}",
            "dtype": "float32",
            "kv_cache_dtype": "auto",
            "heads_per_rank": 8,
            "top_k": 2048,
            "layers": 78,
            "device": "cpu",
            "compute_capability": None,
            "versions": {},
            "kernel_configurations": {},
            "kernel_seconds": {},
            "built_at": None,
            "first_call_at": None,
        }
        | facts
    )
