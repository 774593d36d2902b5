"""Stays with the engine from start to end: forwards signals, keeps engine.json, maps its fate to an exit."""

from __future__ import annotations

import asyncio
import logging
import signal
from datetime import UTC, datetime
from pathlib import Path

from glm5_service.engine.command import EngineCommand
from glm5_service.engine.process import EngineProcess, adopt_orphans
from glm5_service.errors import EngineError, ExitCode
from glm5_service.rundir import EngineState, Phase, write_json

log = logging.getLogger("glm5")


class Supervisor:
    """One run of the engine; `run` is 0 after a requested stop, EngineError if it ended itself."""

    def __init__(
        self, command: EngineCommand, run_dir: Path, *, versions: dict[str, str], stop_seconds: float
    ) -> None:
        self._command, self._run_dir, self._versions = command, run_dir, versions
        self._stop_seconds = stop_seconds
        self._stop = asyncio.Event()
        self._engine: EngineProcess | None = None

    async def run(self) -> ExitCode:
        """Start the engine, wait for its end or for a signal."""
        adopt_orphans()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        self._publish("starting")
        environment = {**self._command.environment, **self._command.secrets}
        self._engine = engine = EngineProcess(self._command.argv, environment, lambda line: None)
        self._publish("starting")
        log.info("engine started pid=%d", engine.pid)
        ended = asyncio.create_task(engine.wait())
        stop = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({ended, stop}, return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                self._publish("draining")
                engine.signal(signal.SIGTERM)
                await asyncio.wait({ended}, timeout=self._stop_seconds)
                if not ended.done():
                    log.warning("engine did not stop in %g s, killed", self._stop_seconds)
                    engine.kill()
            code = await ended
        finally:
            stop.cancel()
            left = await asyncio.to_thread(engine.sweep)
            if left:
                log.warning("killed what the engine left behind processes=%d", left)
        return self._conclude(code)

    def _on_signal(self, number: signal.Signals) -> None:
        if not self._stop.is_set():
            log.info("stop requested signal=%s", number.name)
            self._stop.set()
        elif self._engine:
            log.warning("second signal, killing the engine signal=%s", number.name)
            self._engine.kill()

    def _conclude(self, code: int) -> ExitCode:
        if self._stop.is_set():
            self._publish("stopped")
            log.info("engine stopped code=%d", code)
            return ExitCode.DONE
        self._publish("failed")
        fate = f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"
        raise EngineError(
            "the engine ended by itself",
            fate,
            expected="it to run until told to stop",
            remedy="Read its log above.",
        )

    def _publish(self, phase: Phase) -> None:
        state = EngineState(
            argv=list(self._command.argv),
            pid=self._engine.pid if self._engine else None,
            phase=phase,
            since=datetime.now(UTC),
            versions=self._versions,
        )
        write_json(self._run_dir / "engine.json", state.model_dump_json(indent=2))
