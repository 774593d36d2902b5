"""The recorded runs of the cluster steps: whole, passed, and of the steps as they are."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]


@pytest.mark.parametrize(("name", "helm"), [("cluster-e2e", "v4."), ("cluster-e2e-helm3", "v3.")])
def test_recorded_run_is_whole(name: str, helm: str) -> None:
    """With each Helm every step that there is was run, and passed; the file says on what."""
    result = json.loads((TESTS / "results" / f"{name}.json").read_text())
    steps = {
        step
        for path in (TESTS / "e2e").glob("test_*.py")
        for step in re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE)
    }

    assert result["outcomes"] == dict.fromkeys(sorted(steps), "passed")
    assert result["helm"].startswith(helm)
    assert result["kubernetes"].startswith("v1.")
    assert result["machine"]
    assert all(step["seconds"] > 0 for step in result["steps"])
