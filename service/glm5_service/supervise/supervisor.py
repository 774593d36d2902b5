"""Supervises the engine from start to end: looks, judges, answers probes, drains, and sets the exit code.

`watch` sees and judges, the health server shows; this module runs them in turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial

from glm5_service.contracts.engine import Condition, DrainOutcome, EngineState, Phase
from glm5_service.contracts.termination import TerminationMessage
from glm5_service.engine.child import EngineProcess, adopt_orphans, ended_by_itself
from glm5_service.engine.command_line import EngineCommand
from glm5_service.errors import ExitCode
from glm5_service.rundir import RunDir, try_write
from glm5_service.settings import Settings
from glm5_service.supervise import drain
from glm5_service.supervise.health_process import HealthServer
from glm5_service.supervise.state import Report
from glm5_service.watch import logwatch, processes
from glm5_service.watch.backend import check_backend
from glm5_service.watch.health import Facts, Limits, Verdict, assess, canary_is_due
from glm5_service.watch.observe import Observer
from glm5_service.watch.vllm_api import VllmApi

API_TIMEOUT_SECONDS = 3.0
# looks that may be missed before the probes say that the supervisor itself stands still
MISSED_LOOKS = 30
log = logging.getLogger("glm5")


@dataclass(frozen=True)
class Launch:
    """What is started: the command, how to reach it, and the state's constant part."""

    command: EngineCommand
    api_url: str
    token: str
    identity: EngineState


class Supervisor:
    """One run of the engine; `run` is 0 after a requested stop, EngineError if the engine ended by itself."""

    def __init__(self, launch: Launch, settings: Settings) -> None:
        health, key = settings.health, settings.engine.api_key
        self._launch, self._settings = launch, settings
        self._limits = Limits(health.stall_seconds, health.compile_cap_seconds, health.canary_failures)
        self._run_dir = RunDir(settings.run_dir)
        self._api = VllmApi(
            launch.api_url,
            launch.token,
            model=settings.engine.served_model_name,
            api_key=key.get_secret_value() if key else None,
            timeout=API_TIMEOUT_SECONDS,
        )
        self._log_facts = logwatch.LogFacts()
        self._observer = Observer(Facts(time.monotonic()), self._limits)
        self._report = Report(launch.identity)
        self._verdict = Verdict("starting", "starting_up", "the engine is started")
        self._written: tuple[Phase, Condition | None, DrainOutcome | None] | None = None
        self._stop = asyncio.Event()
        self._engine: EngineProcess | None = None
        self._canary: asyncio.Task[None] | None = None
        self._server: HealthServer | None = None

    async def run(self) -> ExitCode:
        """Start the engine, watch it until it ends or a signal comes, and drain."""
        adopt_orphans()
        self._run_dir.clear()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        health = self._settings.health
        stale_seconds = max(MISSED_LOOKS * health.poll_seconds, 30.0)
        self._server = HealthServer(self._state(), health.host, health.port, stale_seconds)
        try:
            self._server.wait_until_listening()
            code = await self._stay()
        finally:
            self._server.stop()
        return self._conclude(code)

    async def _stay(self) -> int:
        """Run the engine to its end. Returns its exit code."""
        command = self._launch.command
        on_line = partial(self._on_line, asyncio.get_running_loop())
        self._engine = engine = EngineProcess(
            command.argv, {**command.environment, **command.secrets}, on_line
        )
        log.info("engine started pid=%d", engine.pid)
        ended = asyncio.create_task(engine.wait())
        watch = asyncio.create_task(self._watch())
        stop = asyncio.create_task(self._stop.wait())
        try:
            self._judge()
            await asyncio.wait({ended, stop}, return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                await self._end(engine, ended)
            self._observer.facts = replace(self._observer.facts, exit_code=await ended)
        finally:
            for task in (stop, watch, self._canary):
                if task:
                    task.cancel()
            if not ended.done():  # whatever went wrong here, an engine that nobody watches must not go on
                engine.kill()
                await ended
            left = await asyncio.to_thread(engine.sweep)
            if left:
                log.warning("killed what the engine left behind processes=%d", left)
            await self._api.close()
        self._judge()
        return ended.result()

    async def _end(self, engine: EngineProcess, ended: asyncio.Task[int]) -> None:
        """Drain, then stop the engine. An engine that does not stop in time is killed."""
        was_serving = self._verdict.live and self._observer.facts.was_ready
        if not self._verdict.ready:
            # a kubelet that found it hung, or too slow to start, ends it as it ends a healthy one
            sentence = f"told to stop while {self._verdict.phase}: {self._verdict.reason}\n"
            TerminationMessage(sentence=sentence).leave(self._settings.drain.termination_log)
        self._observer.facts = replace(self._observer.facts, stop_requested=True)
        self._judge()
        if was_serving and self._settings.api.gate:
            seen = self._observer.gate
            pending = seen.held if seen else self._observer.facts.pending
            outcome = await drain.drain(self._api, self._settings.drain, pending, ended.done)
            drain.record(outcome, self._run_dir, self._settings.drain)
            self._report.drain = outcome
            self._judge()
        engine.signal(signal.SIGTERM)
        await asyncio.wait({ended}, timeout=self._settings.engine.stop_timeout_seconds)
        if not ended.done():
            log.warning("engine did not stop in %g s, killed", self._settings.engine.stop_timeout_seconds)
            engine.kill()

    async def _watch(self) -> None:
        """Look at the engine once a poll."""
        while True:
            started = time.monotonic()
            try:
                await self._look()
            except (
                Exception
            ):  # one failed look must not end the watch; a lasting fault shows as a stale board
                log.exception("a look at the engine failed")
            await asyncio.sleep(max(self._settings.health.poll_seconds - (time.monotonic() - started), 0.05))

    async def _look(self) -> None:
        assert self._engine is not None
        sample, view = await asyncio.gather(
            self._api.sample(), asyncio.to_thread(processes.look, self._engine.pid)
        )
        identity = self._launch.identity
        attested = self._run_dir.attestations()
        backend = check_backend(attested, identity.expected_backend, identity.ranks)
        self._observer.look(
            time.monotonic(), sample, view, self._log_facts, backend, self._run_dir.compile_marks()
        )
        self._report.attested = [record.backend for record in attested]
        self._judge()
        self._start_canary()
        self._end_what_cannot_recover()

    def _end_what_cannot_recover(self) -> None:
        """Kill an engine that lost a process and does not end. vLLM usually ends itself."""
        assert self._engine is not None
        since, limit = self._observer.facts.lost_since, self._settings.engine.stop_timeout_seconds
        if since is not None and time.monotonic() - since > limit:
            log.warning("the engine did not end in %g s after it lost a process, killed", limit)
            self._engine.kill()

    def _start_canary(self) -> None:
        observer, health = self._observer, self._settings.health
        if (self._canary is None or self._canary.done()) and canary_is_due(
            observer.facts,
            self._limits,
            idle_seconds=health.canary_idle_seconds,
            last_canary_at=observer.last_canary_at,
        ):
            self._canary = asyncio.create_task(self._ask_canary())

    async def _ask_canary(self) -> None:
        started = time.monotonic()
        result = await self._api.canary(self._settings.health.canary_timeout_seconds)
        self._observer.canary_done(time.monotonic(), started, result)
        if result.error:
            log.warning("canary failed error=%s seconds=%.3f", result.error, result.seconds)
        self._judge()

    def _judge(self) -> None:
        """Assess the facts and show the verdict. A change is written to engine.json; a change of phase is logged too."""
        facts = self._observer.facts
        verdict = assess(facts, self._limits)
        if verdict.ready and not facts.was_ready:
            self._observer.facts = replace(facts, was_ready=True)
        is_change = verdict.phase != self._verdict.phase
        self._verdict = verdict
        state = self._state()
        if self._server:
            self._server.post(state)
        # a ready engine goes from idle to serving and back with every request
        shown = (verdict.phase, None if verdict.ready else verdict.condition, state.drain)
        path = self._run_dir.engine
        # noted only once it is there, so that the next look tries again
        if (shown != self._written or not path.exists()) and try_write(path, state):
            self._written = shown
        if is_change:
            level = logging.WARNING if verdict.phase in ("stalled", "failed") else logging.INFO
            log.log(level, "phase=%s reason=%r", verdict.phase, verdict.reason)

    def _state(self) -> EngineState:
        pid = self._engine.pid if self._engine else None
        return self._report.state(self._verdict, self._observer, self._log_facts, pid, datetime.now(UTC))

    def _on_line(self, loop: asyncio.AbstractEventLoop, line: str) -> None:
        """In the thread that relays the log; facts change in the loop's thread only."""
        with contextlib.suppress(RuntimeError):  # the loop has ended, and nobody asks any more
            loop.call_soon_threadsafe(self._read_line, line)

    def _read_line(self, line: str) -> None:
        """Line by line, so that a phase shorter than a poll does not go unseen."""
        before, self._log_facts = self._log_facts, logwatch.read_line(self._log_facts, line)
        if self._log_facts.startup != before.startup:
            self._observer.facts = replace(self._observer.facts, startup=self._log_facts.startup)
            self._judge()

    def _on_signal(self, number: signal.Signals) -> None:
        if not self._stop.is_set():
            log.info("stop requested signal=%s", number.name)
            self._stop.set()
        elif self._engine:
            log.warning("second signal, killing the engine signal=%s", number.name)
            self._engine.kill()

    def _conclude(self, code: int) -> ExitCode:
        if self._stop.is_set():
            log.info("engine stopped code=%d", code)
            return ExitCode.DONE
        lost = self._observer.facts.lost_processes
        if code >= 0 and not lost:  # it ends by itself after a loss, perhaps sooner than the next look
            lost = self._log_facts.lost
        raise ended_by_itself(code, lost)
