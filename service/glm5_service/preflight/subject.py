"""What the rules look at: settings, host, and what earlier rules found out about the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import metadata

from glm5_service.contracts.environment import HeldWeights
from glm5_service.host.hardware import Host
from glm5_service.host.vllm_build import Profile
from glm5_service.model.inspection import ModelFacts
from glm5_service.preflight import allreduce
from glm5_service.preflight.fit import Fit
from glm5_service.settings import Settings


@dataclass
class Subject:
    """What the rules look at; `model`, `profile`, `fit` and `weights` are filled in by the rules that find them."""

    settings: Settings
    host: Host
    model: ModelFacts | None = None
    profile: Profile | None = None
    fit: Fit | None = None
    weights: HeldWeights = "memory"
    version: Callable[[str], str] = field(default=metadata.version)
    all_reduce: Callable[[int, str, float], allreduce.Outcome] = field(default=allreduce.run)
