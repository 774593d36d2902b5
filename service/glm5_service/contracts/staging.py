"""staging.json: how far `glm5 stage` is.

Writer: `staging.progress`. Readers: the sidecar (metrics), `cluster.events` and `cluster.status`.
"""

from __future__ import annotations

from typing import Literal

from pydantic import AwareDatetime

from glm5_service.contracts.base import Record

StagingPhase = Literal[
    "starting",
    "waiting",
    "listing",
    "planning",
    "verifying",
    "fetching",
    "publishing",
    "warming",
    "done",
    "failed",
]


class StagingState(Record):
    """The whole file. A reader ignores keys that a newer writer adds; the writer leaves none out."""

    schema_version: Literal[1]
    phase: StagingPhase
    reason: str | None
    """Why staging failed, one of `staging.reasons.Reason`; None unless the phase is failed."""
    message: str | None
    """The failure as a sentence."""
    remedy: str | None
    """What a person does about the failure."""
    source: str
    revision: str
    total_bytes: int
    """Size of the model; 0 until the source was listed."""
    present_bytes: int
    """Bytes of the model that are on the volume."""
    fetched_bytes: int
    """Bytes that this run received from the source."""
    hashed_bytes: int
    """Bytes that this run read back from the volume to hash them."""
    bytes_per_second: int
    """Rate from the source over the last half minute."""
    eta_seconds: int | None
    retries: int
    restarts: int
    files: dict[str, str]
    """Action or state of each file by name."""
    phase_seconds: dict[str, float]
    """Time spent in each phase that ended."""
    elapsed_seconds: float
    started_at: AwareDatetime
    updated_at: AwareDatetime
