"""A staging.json as the stager writes one in the middle of its work."""

from __future__ import annotations

from datetime import UTC, datetime

from glm5_service.contracts.staging import StagingState

FETCHING = StagingState(
    schema_version=1,
    phase="fetching",
    reason=None,
    message=None,
    remedy=None,
    source="hf://a/b",
    revision="81583032c0320cd8",
    total_bytes=4_000_000_000,
    present_bytes=1_000_000_000,
    fetched_bytes=1_000_000_000,
    hashed_bytes=0,
    bytes_per_second=0,
    eta_seconds=None,
    retries=0,
    restarts=0,
    files={},
    phase_seconds={},
    elapsed_seconds=1,
    started_at=datetime(2026, 11, 29, 11, tzinfo=UTC),
    updated_at=datetime(2026, 11, 29, 12, tzinfo=UTC),
)


def state(**changes: object) -> StagingState:
    """`FETCHING` with other values, checked as when the file is read."""
    return StagingState.model_validate({**FETCHING.model_dump(), **changes})
