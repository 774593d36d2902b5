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
    """Attention backend that every rank must attest. auto: the plugin's, for GLM-5. none: any."""
    poll_seconds: Seconds = 1
    """Seconds between two looks at the engine."""
    stall_seconds: Seconds = 120
    """Seconds of queued work without an engine step after which the engine counts as hung."""
    compile_cap_seconds: Seconds = 600
    """Maximum seconds for which a kernel compilation counts as progress."""
    canary_idle_seconds: Seconds = 60
    """Seconds between two canaries, requests for one token, while the engine is idle."""
    canary_timeout_seconds: Seconds = 30
    """Seconds that a canary may take."""
    canary_failures: Count = 3
    """Failed canaries in a row after which the engine counts as hung."""


class DrainSettings(Section):
    """How running requests end when the pod is told to stop."""

    endpoint_grace_seconds: Annotated[float, Field(ge=0)] = 5
    """Seconds between failing readiness and refusing requests. Endpoints are updated meanwhile."""
    limit_seconds: Annotated[float, Field(ge=0)] = 300
    """Seconds that running requests may take to finish before they are aborted."""
    termination_log: Path = Path("/dev/termination-log")
    """File for the termination message. Written only if it exists; the kubelet creates it."""


class PreflightSettings(Section):
    """Checks before every start."""

    enabled: bool = True
    """Run the checks before the engine starts. A failed check ends the start."""
    skip: Words = Field(default=[])
    """Names of checks to skip."""
    all_reduce_seconds: Seconds = 120
    """Seconds after which the all-reduce over all GPUs counts as hung."""


class SidecarSettings(Section):
    """The metrics server beside the engine."""

    host: str = "0.0.0.0"
    """Address of /metrics."""
    port: Port = 9400
    """Port of /metrics."""
    engine_url: str | None = None
    """Base address of the API. Unset, engine.port on this host."""
    supervisor_url: str | None = None
    """Base address of the health server. Unset, health.port on this host."""
    timeout_seconds: Seconds = 2
    """Seconds that each source of a scrape may take to answer."""
