"""Folders for compiled kernels, keyed by what they were compiled for; old keys are pruned.

A cache of another image, driver or GPU is at best useless and at worst loaded; so each combination has its own folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import shutil
from collections.abc import Mapping
from pathlib import Path

from glm5_service.host import hardware
from glm5_service.host.vllm_build import versions

KEPT_KEYS = 2
# variable -> folder below the key
VARIABLES = {
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "torchinductor",
    "VLLM_CACHE_ROOT": "vllm",
    "DG_JIT_CACHE_DIR": "deep_gemm",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "TILELANG_CACHE_DIR": "tilelang",
    "CUDA_CACHE_PATH": "cuda",
}


def cache_key(image: str | None, found: hardware.Host, installed: Mapping[str, str]) -> str:
    """Name of the folder for this image (or these versions), driver and GPU kind."""
    kinds = sorted({f"{gpu.name}:{gpu.capability[0]}.{gpu.capability[1]}" for gpu in found.gpus})
    parts = [
        image or repr(sorted(installed.items())),
        found.driver or "no driver",
        *kinds,
        platform.machine(),
    ]
    arch = "-".join(sorted({f"sm{gpu.capability[0]}{gpu.capability[1]}" for gpu in found.gpus})) or "cpu"
    return f"{arch}-{hashlib.sha256(chr(10).join(parts).encode()).hexdigest()[:12]}"


def prepare(cache_dir: Path, image: str | None) -> dict[str, str]:
    """The environment that sends every compiler's cache to this key's folder; prunes keys not used lately."""
    root = cache_dir / "jit"
    folder = root / cache_key(image, hardware.look(), versions())
    folder.mkdir(parents=True, exist_ok=True)
    os.utime(folder)
    prune(root, KEPT_KEYS)
    return {variable: str(folder / name) for variable, name in VARIABLES.items()}


def prune(root: Path, keep: int) -> list[str]:
    """Remove all but the `keep` keys used last; returns the removed names. A key in use elsewhere may refuse."""
    by_use = sorted(root.iterdir(), key=_used_at, reverse=True)
    removed = []
    for folder in by_use[keep:]:
        with contextlib.suppress(OSError):
            shutil.rmtree(folder)
            removed.append(folder.name)
    return removed


def _used_at(folder: Path) -> float:
    try:
        return folder.stat().st_mtime
    except OSError:  # another start on the same volume has just removed it
        return 0.0
