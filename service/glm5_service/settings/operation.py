"""Settings of running the engine: health, draining, preflight and the sidecar."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from glm5_service.settings.base import Port, Seconds, Section, Words

Count = Annotated[int, Field(ge=1)]


class HealthSettings(Section):
    """When the engine counts as ready, as alive and as stuck."""

    host: str = "0.0.0.0"
    """Address of the health server."""
    port: Port = 8081
    """Port of /startupz, /readyz, /livez and /status."""
    expected_backend: str = "auto"
    """Attention backend every rank must attest; auto is the profile's own for GLM-5, none is no demand."""
    poll_seconds: Seconds = 1
    """How often the engine is looked at."""
    stall_seconds: Seconds = 120
    """Queued work without an engine step or token for this long means the engine hangs."""
    compile_cap_seconds: Seconds = 600
    """A kernel compilation counts as progress for at most this long."""
    canary_idle_seconds: Seconds = 60
    """An idle engine is asked for one token this often."""
    canary_timeout_seconds: Seconds = 30
    """How long that token may take."""
    canary_failures: Count = 3
    """So many failures in a row mean the engine hangs."""


class DrainSettings(Section):
    """How running requests end when the pod is told to stop."""

    endpoint_grace_seconds: Annotated[float, Field(ge=0)] = 5
    """Between failing readiness and refusing requests, so that endpoints can be updated."""
    limit_seconds: Annotated[float, Field(ge=0)] = 300
    """How long running requests may take to finish before they are aborted."""
    termination_log: Path = Path("/dev/termination-log")
    """File that gets the outcome, or why serving ended, if it exists; Kubernetes shows it as the termination message."""


class PreflightSettings(Section):
    """Checks before every start."""

    enabled: bool = True
    """Run the checks before the engine starts; a failed one ends the start."""
    skip: Words = Field(default=[])
    """Names of checks that are left out."""
    all_reduce_seconds: Seconds = 120
    """How long the all-reduce over all GPUs may take before it counts as hung."""


class SidecarSettings(Section):
    """The metrics server beside the engine."""

    host: str = "0.0.0.0"
    """Address of /metrics."""
    port: Port = 9400
    """Port of /metrics."""
    engine_url: str | None = None
    """Base address of the API; unset takes engine.port on this host."""
    supervisor_url: str | None = None
    """Base address of the health server; unset takes health.port on this host."""
    timeout_seconds: Seconds = 2
    """How long each source may take to answer a scrape."""
