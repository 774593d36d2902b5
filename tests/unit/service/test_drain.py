"""How a drain counts requests, also behind a gate that answers late, stops answering or never does."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import cast

import pytest

from glm5_service.contracts.engine import DrainOutcome
from glm5_service.contracts.gate_counts import GateCounts
from glm5_service.rundir import RunDir
from glm5_service.settings.operation import DrainSettings
from glm5_service.supervise import drain as module
from glm5_service.watch.vllm_api import VllmApi

LOST = None


def _counts(running: int, finished: int = 0, refused: int = 0, uploading: int = 0) -> GateCounts:
    return GateCounts(running, finished, 0, {"draining": refused}, uploading, False)


class _Api:
    """A gate that gives these answers one after the other, the last one for ever."""

    def __init__(self, before: Iterable[GateCounts | None], after: Iterable[GateCounts | None]) -> None:
        self._before, self._after = _lasting(before), _lasting(after)
        self.orders = 0

    async def gate(self) -> GateCounts | None:
        return next(self._before)

    async def drain(self) -> GateCounts | None:
        self.orders += 1
        return next(self._after)


def _lasting(answers: Iterable[GateCounts | None]) -> Iterator[GateCounts | None]:
    *first, last = answers
    return itertools.chain(first, itertools.repeat(last))


def _drain(api: _Api, *, limit: float = 600, has_ended: bool = False, pending: int = 7) -> DrainOutcome:
    settings = DrainSettings(endpoint_grace_seconds=0, limit_seconds=limit)
    return asyncio.run(module.drain(cast(VllmApi, api), settings, pending, lambda: has_ended))


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POLL_SECONDS", 0)


def test_finished_and_refused_are_counted() -> None:
    """What ended since the start of the drain is finished; what came meanwhile is refused."""
    outcome = _drain(_Api([_counts(2, 10)], [_counts(2, 10), _counts(1, 11, 3), _counts(0, 12, 4)]))
    assert (outcome.finished, outcome.aborted, outcome.refused) == (2, 0, 4)
    assert outcome.reason == "all requests finished"


def test_a_request_that_still_arrives_is_waited_for() -> None:
    """A body on its way when the drain begins becomes a request and finishes; one that never arrives is aborted."""
    arrives = [_counts(0, uploading=1), _counts(1), _counts(0, 1)]
    outcome = _drain(_Api([arrives[0]], arrives))
    assert (outcome.finished, outcome.aborted) == (1, 0)
    outcome = _drain(_Api([arrives[0]], [arrives[0]]), limit=0)
    assert (outcome.finished, outcome.aborted) == (0, 1)


def test_a_gate_that_answers_late_is_waited_for() -> None:
    """Polls without an answer, also the very first, do not end the drain while there is patience."""
    late = [LOST] * (module.UNANSWERED - 1)
    api = _Api([*late, _counts(2)], [*late, _counts(2), *late, _counts(0, 2)])
    outcome = _drain(api)
    assert (outcome.finished, outcome.aborted) == (2, 0)
    assert outcome.reason == "all requests finished"


def test_a_lost_order_is_given_again() -> None:
    """The gate is told to refuse until it has answered, else it would let new requests in."""
    api = _Api([_counts(0)], [LOST, LOST, _counts(0)])
    _drain(api)
    assert api.orders == 3


def test_a_gate_that_never_answers_loses_what_ran_when_last_seen() -> None:
    """Requests behind a silent gate are not counted as none."""
    outcome = _drain(_Api([LOST], [LOST]), pending=7)
    assert (outcome.finished, outcome.aborted, outcome.reason) == (0, 7, "the gate does not answer")


@pytest.mark.parametrize(
    ("limit", "has_ended", "reason"),
    [(600, True, "the engine ended while draining"), (0, False, "the limit of 0 s was reached")],
)
def test_a_gate_that_cannot_answer_any_more_is_not_to_blame(
    limit: float, has_ended: bool, reason: str
) -> None:
    """Where the engine had ended, or time was up, before the gate was heard, that is the reason."""
    outcome = _drain(_Api([LOST], [LOST]), limit=limit, has_ended=has_ended, pending=7)
    assert (outcome.finished, outcome.aborted, outcome.reason) == (0, 7, reason)


def test_a_gate_that_falls_silent_loses_what_ran() -> None:
    """The last counts stand."""
    outcome = _drain(_Api([_counts(3)], [_counts(3), _counts(2, 1), LOST]))
    assert (outcome.finished, outcome.aborted, outcome.reason) == (1, 2, "the gate stopped answering")


@pytest.mark.parametrize("after", [[_counts(3)], [LOST]])
def test_the_limit_holds_whatever_the_gate_says(after: list[GateCounts | None]) -> None:
    """Neither running requests nor a silent gate are waited for beyond the limit."""
    outcome = _drain(_Api([_counts(3)], after), limit=0)
    assert (outcome.aborted, outcome.reason) == (3, "the limit of 0 s was reached")


def test_an_engine_that_ended_is_not_waited_for() -> None:
    """Requests that ran when it ended are lost."""
    outcome = _drain(_Api([_counts(3)], [LOST]), has_ended=True)
    assert (outcome.aborted, outcome.reason) == (3, "the engine ended while draining")


def test_an_outcome_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    """Without a place for drain.json the termination message still says how the requests ended, and nothing is raised."""
    (tmp_path / "file").touch()
    (tmp_path / "end").touch()
    outcome = DrainOutcome(finished=2, aborted=1, refused=0, seconds=3, reason="the limit was reached")
    settings = DrainSettings(termination_log=tmp_path / "end")
    module.record(outcome, RunDir(tmp_path / "file"), settings)
    assert (tmp_path / "end").read_text() == "drained: 2 finished, 1 aborted in 3 s; the limit was reached\n"
