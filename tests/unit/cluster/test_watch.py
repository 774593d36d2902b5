"""`glm5 cluster status --watch` outlives what it watches."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from glm5_service.commands import cluster as commands
from glm5_service.errors import SourceError


class Enough(Exception):
    """Ends the watch."""


def test_a_read_that_fails_does_not_end_the_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two pods of an upgrade, or while the API server restarts, the reason is shown, then the next status."""
    answers = iter([["first"], SourceError("no pod of the release", "glm5"), ["second"], Enough()])

    def read(*_: object) -> list[str]:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr("glm5_service.cluster.client.Cluster", lambda *_: SimpleNamespace(namespace="llm"))
    monkeypatch.setattr("glm5_service.cluster.release_status.read_status", read)
    monkeypatch.setattr("glm5_service.cluster.screen.status_text", lambda pods, _: f"status {pods[0]}")
    monkeypatch.setattr(commands, "WATCH_SECONDS", 0.0)
    result = CliRunner().invoke(commands.command, ["status", "--watch"])
    assert isinstance(result.exception, Enough)
    shown = [result.output.index(text) for text in ("status first", "no pod of the release", "status second")]
    assert shown == sorted(shown)


def test_a_first_read_that_fails_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong namespace is said at once, not watched."""

    def read(*_: object) -> list[str]:
        raise SourceError("no pod of the release", "glm5")

    monkeypatch.setattr("glm5_service.cluster.client.Cluster", lambda *_: SimpleNamespace(namespace="llm"))
    monkeypatch.setattr("glm5_service.cluster.release_status.read_status", read)
    result = CliRunner().invoke(commands.command, ["status", "--watch"])
    assert isinstance(result.exception, SourceError)
