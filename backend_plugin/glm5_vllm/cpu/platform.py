"""vLLM's CPU platform with sparse MLA: sends sparse layers to the torch backend, everything else to vLLM's own."""

from __future__ import annotations

from typing import Any

from vllm.platforms.cpu import CpuPlatform

BACKEND_NAME = "TORCH_MLA_SPARSE"
BACKEND_CLASS = "glm5_vllm.cpu.backend.TorchMLASparseBackend"


class Glm5CpuPlatform(CpuPlatform):
    """The CPU profile."""

    @classmethod
    def get_attn_backend_cls(
        cls, selected_backend: Any, attn_selector_config: Any, num_heads: int | None = None
    ) -> str:
        """Class path of the attention backend.

        Raises:
            ValueError: another backend was asked for by name for a sparse layer.
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
