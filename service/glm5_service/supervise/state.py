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
        if verdict.phase != self._phase or self._since is None:
            if self._phase is not None and self._since is not None:
                self._done.append(PhaseSpan(phase=self._phase, seconds=(now - self._since).total_seconds()))
            self._phase, self._since = verdict.phase, now
        facts = observer.facts
        since_progress = (
            None if facts.progress_at is None else round(max(facts.now - facts.progress_at, 0.0), 3)
        )
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
                "traffic": TrafficState(
                    running=facts.pending,
                    finished=observer.gate.finished if observer.gate else 0,
                    refused=observer.gate.refused if observer.gate else {},
                    seconds_since_progress=since_progress,
                ),
                "memory": memory,
                "drain": self.drain,
            }
        )
