"""engine.json, drain.json and the answer of /status: what runs, and where it stands.

Writer: `supervise`. Readers: the health server, the sidecar, `glm5 cluster`, `glm5 demo`.
"""

from __future__ import annotations

from typing import Literal

from pydantic import AwareDatetime, Field

from glm5_service.contracts.base import Record

Phase = Literal[
    "preflight",
    "starting",
    "loading",
    "compiling",
    "warming",
    "ready",
    "stalled",
    "draining",
    "failed",
    "stopped",
]
# why the phase is what it is, as a fixed list of words for metrics and alerts
Condition = Literal[
    "not_started",
    "starting_up",
    "first_token_awaited",
    "backend_not_attested",
    "backend_wrong",
    "idle",
    "serving",
    "compiling_kernel",
    "no_step",
    "no_token",
    "engine_dead",
    "process_lost",
    "ended",
    "draining",
    "stopped",
]


class PhaseSpan(Record):
    """A phase that the engine went through; `seconds` runs to its end."""

    phase: Phase
    seconds: float


class CanaryState(Record):
    """The supervisor's own requests for one token."""

    passed: int = 0
    failed: int = 0
    inconclusive: int = 0
    consecutive_failures: int = 0
    last_seconds: float | None = None
    last_error: str | None = None


class CompileState(Record):
    """Kernel compilations that were seen."""

    running_seconds: float = 0
    running: str | None = None
    after_warmup: int = 0
    last_after_warmup: str | None = None


class TrafficState(Record):
    """User requests as the API's gate counts them; the canary is not among them."""

    running: int = 0
    finished: int = 0
    refused: dict[str, int] = Field(default={})
    seconds_since_progress: float | None = None


class MemoryState(Record):
    """Memory, in bytes and tokens: what was estimated before the start and what the engine reported."""

    weights_estimated_bytes: int | None = None
    weights_reported_bytes: int | None = None
    kv_estimated_tokens: int | None = None
    kv_reported_tokens: int | None = None


class DrainOutcome(Record):
    """drain.json: how running requests ended."""

    finished: int
    aborted: int
    refused: int
    seconds: float
    reason: str


class EngineState(Record):
    """engine.json and the answer of /status: what runs and where it stands."""

    schema_version: Literal[1] = 1
    phase: Phase
    since: AwareDatetime
    condition: Condition = "starting_up"
    reason: str
    remedy: str = ""
    started: bool = False
    ready: bool = False
    live: bool = True
    argv: list[str] = Field(default=[])
    pid: int | None = None
    model: str | None = None
    architecture: str | None = None
    expected_backend: str | None = None
    attested_backends: list[str] = Field(default=[])
    ranks: int = 1
    versions: dict[str, str] = Field(default={})
    phases: list[PhaseSpan] = Field(default=[])
    canary: CanaryState = CanaryState()
    compiles: CompileState = CompileState()
    traffic: TrafficState = TrafficState()
    memory: MemoryState = MemoryState()
    drain: DrainOutcome | None = None
