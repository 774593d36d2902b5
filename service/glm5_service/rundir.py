"""The run directory: the files that the parts of a pod share, their models, their writing and reading.

Every file is written whole by rename, so a reader sees the old one or the new one.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import AwareDatetime, BaseModel, ConfigDict, ValidationError

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
log = logging.getLogger("glm5")
Model = TypeVar("Model", bound=BaseModel)


class Record(BaseModel):
    """Base of the files' models; fields that a newer writer adds are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")


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
    refused: dict[str, int] = {}
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
    condition: str = "starting_up"
    reason: str
    remedy: str = ""
    started: bool = False
    ready: bool = False
    live: bool = True
    argv: list[str] = []
    pid: int | None = None
    model: str | None = None
    architecture: str | None = None
    expected_backend: str | None = None
    attested_backends: list[str] = []
    ranks: int = 1
    versions: dict[str, str] = {}
    phases: list[PhaseSpan] = []
    canary: CanaryState = CanaryState()
    compiles: CompileState = CompileState()
    traffic: TrafficState = TrafficState()
    memory: MemoryState = MemoryState()
    drain: DrainOutcome | None = None


class Attestation(Record):
    """attention/rank-N.json, written by the plugin in each worker: what that rank really runs."""

    rank: int
    backend: str
    backend_class: str = ""
    dtype: str = ""
    kv_cache_dtype: str = ""
    heads_per_rank: int = 0
    top_k: int = 0
    layers: int = 0
    device: str = ""
    compute_capability: str | None = None
    versions: dict[str, str] = {}
    kernel_configurations: dict[str, dict[str, object]] = {}
    kernel_seconds: dict[int, float] = {}
    built_at: float | None = None
    first_call_at: float | None = None


class CompileMark(Record):
    """compiles/PID.json, there while that process of the engine compiles a kernel."""

    kernel: str
    since: float


class RunDir:
    """Paths of the run directory's files and typed reading; a missing or half-readable file reads as None."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.engine = path / "engine.json"
        self.drain = path / "drain.json"
        self.staging = path / "staging.json"
        self.token = path / "internal-token"
        self.attention = path / "attention"
        self.compiles = path / "compiles"

    def attestations(self) -> list[Attestation]:
        """What every rank attested, in the order of ranks."""
        found = (read(path, Attestation) for path in self.attention.glob("rank-*.json"))
        return sorted((record for record in found if record), key=lambda record: record.rank)

    def compile_marks(self) -> list[tuple[int, CompileMark]]:
        """Compilations under way by process id."""
        found = ((path.stem, read(path, CompileMark)) for path in self.compiles.glob("*.json"))
        return [(int(pid), mark) for pid, mark in found if mark and pid.isdigit()]

    def clear(self) -> None:
        """Forget what an earlier run left but engine.json; a stale attestation must not make the next start ready."""
        for stale in [self.drain, *self.attention.glob("*"), *self.compiles.glob("*")]:
            stale.unlink(missing_ok=True)


def read(path: Path, model: type[Model]) -> Model | None:
    """The file as `model`, or None."""
    try:
        return parse(path.read_bytes(), model)
    except OSError:
        return None


def parse(data: bytes | str, model: type[Model]) -> Model | None:
    """The JSON text `data` as `model`, or None."""
    try:
        return model.model_validate_json(data)
    except ValidationError:
        return None


def write(path: Path, record: BaseModel) -> None:
    """Put `record` at `path` by rename."""
    write_text(path, record.model_dump_json(indent=1))


def try_write(path: Path, record: BaseModel) -> bool:
    """As `write`, for work that goes on without the file: one that cannot be written is logged. Whether it was."""
    try:
        write(path, record)
    except OSError as error:
        log.warning("cannot write %s: %s", path, error.strerror)
        return False
    return True


def write_text(path: Path, text: str, mode: int = 0o644) -> None:
    """Put `text` at `path` by rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    temporary.replace(path)
