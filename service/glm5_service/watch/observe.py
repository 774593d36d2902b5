"""Turns observations of the engine into `Facts`. One call for each look. Does not wait and uses no network."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from glm5_service.contracts.compile_mark import CompileMark
from glm5_service.contracts.engine import CanaryState
from glm5_service.contracts.gate_counts import GateCounts
from glm5_service.watch.backend import BackendCheck
from glm5_service.watch.health import Facts, Limits, compiled_until
from glm5_service.watch.logwatch import LogFacts
from glm5_service.watch.processes import ProcessView
from glm5_service.watch.vllm_api import CanaryResult, Sample, Steps

# after this long without readable metrics, the step counters no longer show what the engine does
BLIND_SECONDS = 10.0


@dataclass
class Observer:
    """Holds the facts so far. `gate` and `steps` are the last values that could be read."""

    facts: Facts
    limits: Limits
    canary: CanaryState = field(default_factory=CanaryState)
    gate: GateCounts | None = None
    steps: Steps | None = None
    compiled_seconds: float = 0.0
    last_canary_at: float | None = None
    _steps_read_at: float | None = None
    _answered_wrong: bool = False
    _known: frozenset[tuple[int, str]] = frozenset()

    @property
    def is_blind(self) -> bool:
        """Whether the step counters could not be read for a while."""
        return self._steps_read_at is None or self.facts.now - self._steps_read_at > BLIND_SECONDS

    def look(
        self,
        now: float,
        sample: Sample,
        processes: ProcessView,
        log: LogFacts,
        backend: BackendCheck,
        marks: Sequence[tuple[int, CompileMark]],
    ) -> None:
        """Add one look to the facts."""
        elapsed = now - self.facts.now
        self.facts = replace(
            self.facts,
            now=now,
            startup=log.startup,
            api_answered=self.facts.api_answered or sample.health_status == 200,
            api_says_dead=sample.health_status == 503,
            backend_problem=backend.problem,
            backend_wrong=backend.is_wrong,
        )
        self._see_progress(sample)
        self._see_pending()
        self._see_compiling(processes, marks, elapsed)
        self._see_processes(processes)

    def canary_done(self, now: float, started: float, result: CanaryResult) -> None:
        """Add the outcome of a canary. It does not count if it got no answer and other requests were before it."""
        self.last_canary_at = now
        facts, canary = self.facts, self.canary
        if result.error is None:
            self.canary = canary.model_copy(
                update={
                    "passed": canary.passed + 1,
                    "consecutive_failures": 0,
                    "last_seconds": result.seconds,
                    "last_error": None,
                }
            )
            self.facts = replace(
                facts, canary_passed=True, canary_failures=0, canary_error=None, progress_at=now
            )
            return
        moved_meanwhile = facts.progress_at is not None and facts.progress_at >= started
        compiled_at = compiled_until(facts, self.limits)
        compiled_meanwhile = compiled_at is not None and compiled_at >= started
        # requests that came after the canary are not before it. Old counters may still count clients that gave up
        were_first = bool(facts.queued) and facts.pending_since is not None and facts.pending_since <= started
        # if users wait, the stall limit decides
        is_behind_others = moved_meanwhile or (facts.pending > 0 and (compiled_meanwhile or were_first))
        if facts.was_ready and is_behind_others and not result.is_wrong:
            self.canary = canary.model_copy(update={"inconclusive": canary.inconclusive + 1})
            return
        self._answered_wrong = result.is_wrong
        failures = canary.consecutive_failures + 1
        self.canary = canary.model_copy(
            update={"failed": canary.failed + 1, "consecutive_failures": failures, "last_error": result.error}
        )
        self.facts = replace(facts, canary_failures=failures, canary_error=result.error)

    def _see_progress(self, sample: Sample) -> None:
        moved = False
        if sample.steps is not None:
            moved = self.steps is not None and sample.steps.moved_since(self.steps)
            self.steps, self._steps_read_at = sample.steps, self.facts.now
        elif self.is_blind and sample.gate and self.gate:
            moved = sample.gate.sent > self.gate.sent
        if sample.gate is not None:
            self.gate = sample.gate
        if moved:
            self.facts = replace(self.facts, progress_at=self.facts.now)
        if moved and not self._answered_wrong:
            # a step outdates a canary without an answer, but not one with a wrong answer
            self.facts = replace(self.facts, canary_failures=0, canary_error=None)
            self.canary = self.canary.model_copy(update={"consecutive_failures": 0})

    def _see_pending(self) -> None:
        said = self.steps.pending if self.steps else 0
        pending = self.gate.running if self.gate else said
        since = None if pending == 0 else self.facts.pending_since if self.facts.pending else self.facts.now
        queued = None if self.is_blind else said
        self.facts = replace(self.facts, pending=pending, pending_since=since, queued=queued)

    def _see_compiling(
        self, processes: ProcessView, marks: Sequence[tuple[int, CompileMark]], elapsed: float
    ) -> None:
        """A compilation lasts until the engine takes a step again. A chain of compilations then has one cap."""
        facts = self.facts
        alive = [mark for pid, mark in marks if pid in processes.pids]
        what = ", ".join(sorted({mark.kernel for mark in alive} | set(processes.compilers)))
        if not what:
            self.facts = replace(facts, compiling=None)
            return
        since = facts.compile_since
        age = max((max(time.time() - mark.since, 0.0) for mark in alive), default=None)
        if since is None or (facts.progress_at or 0.0) > (facts.compile_seen_at or 0.0):
            since = facts.now - (age or 0.0)
        if facts.was_ready:
            # nothing reports when a compiler started
            self.compiled_seconds += elapsed if age is None else min(elapsed, age)
        self.facts = replace(facts, compiling=what, compile_since=since, compile_seen_at=facts.now)

    def _see_processes(self, processes: ProcessView) -> None:
        """After the engine was ready, no process may disappear. Before that, vLLM starts and ends helpers."""
        if not self.facts.was_ready:
            self._known = processes.titled
        lost = tuple(sorted(title for pid, title in self._known if pid not in processes.pids))
        since = self.facts.lost_since if self.facts.lost_processes else self.facts.now
        self.facts = replace(self.facts, lost_processes=lost, lost_since=since if lost else None)
