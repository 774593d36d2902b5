"""A revision that is staged aside, for a model that is being served meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from glm5_service.staging.stager import Options
from tests.unit.staging.test_run import Runner, change, headers_are_fine, source, stage

__all__ = ["headers_are_fine", "source", "stage"]


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """Another model."""
    folder = tmp_path / "other"
    folder.mkdir()
    (folder / "m.gguf").write_bytes(b"GGUF" + b"other" * 1000)
    (folder / "config.json").write_text("{}")
    return folder


def test_what_is_staged_aside_becomes_current_without_a_byte(stage: Runner, other: Path) -> None:
    """Readers and pods that ask for the served model see no change; who asks for the new one has it at once."""
    served = stage()
    assert served is not None
    new = f"file://{other}"
    assert stage(source=new, aside=True) == served
    assert "lies ready" in stage.log.getvalue()
    # a pod beside a staging Job that is replaced in between
    assert stage(Options(wait=True)) == served
    assert stage() == served
    assert len(stage.revisions) == 2

    switched = stage(source=new)
    assert switched is not None
    assert (switched.source, stage.state["fetched_bytes"]) == (new, 0)


def test_staging_aside_removes_nothing(stage: Runner, other: Path) -> None:
    """The revision that was asked for may be the oldest on the volume, and nobody has it yet."""
    stage(source=f"file://{other}")
    change(stage.source, "{ }")
    stage(keep=3)
    change(stage.source, "{  }")
    served = stage(keep=3, refresh=True)
    assert len(stage.revisions) == 3
    assert stage(source=f"file://{other}", aside=True) == served
    assert len(stage.revisions) == 3


def test_the_first_model_may_be_staged_aside(stage: Runner) -> None:
    """Nothing is current then, and the next run makes it so."""
    assert stage(aside=True) is None
    assert stage() is not None
    assert stage.state["fetched_bytes"] == 0
