"""Every environment variable the plugin reads: the only place where it reads the environment."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path


class Weights(StrEnum):
    """What a GGUF's weights are held as."""

    SPEED = "speed"
    """Dense layers of large types become float at loading, and a long chunk has a layer's experts as floats."""
    MEMORY = "memory"
    """Every quantised weight stays as it is in the file."""


def run_dir() -> Path | None:
    """`GLM5_RUN_DIR`: folder shared by the containers of the pod; unset means that nothing is attested."""
    value = os.environ.get("GLM5_RUN_DIR")
    return Path(value) if value else None


def vllm_plugins() -> list[str] | None:
    """`VLLM_PLUGINS`: the only plugins that vLLM loads, in every process; unset means all."""
    value = os.environ.get("VLLM_PLUGINS")
    return None if value is None else value.split(",")


def weights() -> Weights:
    """`GLM5_WEIGHTS`: what a GGUF's weights are held as, `speed` (default) or `memory`; see `Weights`.

    Raises:
        ValueError: another value.
    """
    value = os.environ.get("GLM5_WEIGHTS") or Weights.SPEED.value
    names = [choice.value for choice in Weights]
    if value not in names:
        raise ValueError(
            f"the variable GLM5_WEIGHTS is {value!r}; expected {' or '.join(names)}. Correct or unset it."
        )
    return Weights(value)


def onednn_max_cpu_isa() -> str | None:
    """`ONEDNN_MAX_CPU_ISA`: the widest instruction set of oneDNN, and so of the CPU profile; unset means no limit."""
    return os.environ.get("ONEDNN_MAX_CPU_ISA")


def cache_dir() -> Path:
    """`GLM5_CACHE_DIR`: where config and tokenizer built from a GGUF lie; default `$XDG_CACHE_HOME/glm5`."""
    value = os.environ.get("GLM5_CACHE_DIR")
    if value:
        return Path(value)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "glm5"


def http_protocol() -> str | None:
    """`GLM5_HTTP_PROTOCOL`: `module:class` that speaks HTTP in the API server; unset means uvicorn's own choice."""
    return os.environ.get("GLM5_HTTP_PROTOCOL")


def grammar_seconds() -> float | None:
    """`GLM5_GRAMMAR_SECONDS`: how long compiling one grammar may take; unset means as long as it takes."""
    value = os.environ.get("GLM5_GRAMMAR_SECONDS")
    return None if value is None else float(value)


def model_release() -> str | None:
    """`GLM5_MODEL_RELEASE`: which GLM-5 a GGUF is, where it contradicts itself; unset means that the file decides."""
    return os.environ.get("GLM5_MODEL_RELEASE") or None
