"""Kills at any moment cost next to nothing and never spoil a model."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.staging.faults_table import fault
from tests.support.staging.kills import stage_with_kills
from tests.support.staging.large_gguf import SplitSet

pytestmark = pytest.mark.staging


@fault(
    "50 SIGKILLs at random moments",
    then="each next run continues; at most 1.05 times the bytes, plus one part for each worker and kill",
)
def test_fifty_kills(model: SplitSet, tmp_path: Path) -> None:
    """Over 50 SIGKILLs each result is whole and costs at most 1.05 times the bytes, plus a part per worker and kill."""
    report = stage_with_kills(model, tmp_path, kills=50, connections=2, seconds_a_set=5, part_bytes=1 << 20)
    assert report.kills == 50
    assert report.runs_to_the_end >= 1
    assert report.sent_bytes <= report.allowed_bytes
