"""A set of the real size, as holes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.staging.sparse import MISSING_BYTES, sparse_report

pytestmark = pytest.mark.staging


def test_full_size_set(tmp_path: Path) -> None:
    """400 GB are planned, continued and checked for structure without being read, in less than 300 MB of memory."""
    report = sparse_report(tmp_path / "sparse")
    assert report["set_bytes"] > 400e9
    assert report["published_bytes"] == report["set_bytes"]
    assert [step["returncode"] for step in report["steps"].values()] == [0, 0, 0], report["log"]
    assert max(step["peak_mib"] for step in report["steps"].values()) < 300
    assert f"fetched {MISSING_BYTES / 1e6:.1f} MB" in "\n".join(report["log"])
