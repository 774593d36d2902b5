"""Puts verdict and observations together as the state that /status and engine.json show."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from glm5_service.contracts.engine import (
    CompileState,
    DrainOutcome,
    EngineState,
    Phase,
    PhaseSpan,
    TrafficState,
)
from glm5_service.watch.health import Verdict
from glm5_service.watch.logwatch import LogFacts
from glm5_service.watch.observe import Observer


@dataclass
class Report:
    """The history behind the state: phases since the engine was started, attested backends, the outcome of draining."""

    identity: EngineState
    attested: list[str] = field(default_factory=list)
    drain: DrainOutcome | None = None
    _phase: Phase | None = None
    _since: datetime | None = None
    _done: list[PhaseSpan] = field(default_factory=list)

    def state(
        self, verdict: Verdict, observer: Observer, log: LogFacts, pid: int | None, now: datetime
    ) -> EngineState:
        """The whole state at `now`."""
        self._enter(verdict.phase, now)
        facts = observer.facts
        memory = self.identity.memory.model_copy(
            update={"weights_reported_bytes": log.weights_bytes, "kv_reported_tokens": log.kv_tokens}
        )
        return self.identity.model_copy(
            update={
                "phase": verdict.phase,
                "since": self._since,
                "condition": verdict.condition,
                "reason": verdict.reason,
                "remedy": verdict.remedy,
                "started": facts.was_ready or verdict.ready,
                "ready": verdict.ready,
                "live": verdict.live,
                "pid": pid,
                "attested_backends": self.attested,
                "phases": [*self.identity.phases, *self._done],
                "canary": observer.canary,
                "compiles": CompileState(
                    running_seconds=round(observer.compiled_seconds, 3),
                    running=facts.compiling,
                    after_warmup=log.compiles_after_warmup,
                    last_after_warmup=log.last_compile,
                ),
                "traffic": _traffic(observer),
                "memory": memory,
                "drain": self.drain,
            }
        )

    def _enter(self, phase: Phase, now: datetime) -> None:
        """Begin `phase`, unless it is the current one."""
        if phase == self._phase and self._since is not None:
            return
        if self._phase is not None and self._since is not None:
            self._done.append(PhaseSpan(phase=self._phase, seconds=(now - self._since).total_seconds()))
        self._phase, self._since = phase, now


def _traffic(observer: Observer) -> TrafficState:
    facts, gate = observer.facts, observer.gate
    age = None if facts.progress_at is None else round(max(facts.now - facts.progress_at, 0.0), 3)
    return TrafficState(
        running=facts.pending,
        finished=gate.finished if gate else 0,
        refused=gate.refused if gate else {},
        seconds_since_progress=age,
    )
