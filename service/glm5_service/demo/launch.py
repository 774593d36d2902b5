"""Runs `glm5 serve` as a child for the demo: start, wait until it answers, stop. Asks through `ask`."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType, TracebackType

from glm5_service.contracts.engine import EngineState
from glm5_service.demo.ask import Asker
from glm5_service.demo.show import Progress
from glm5_service.errors import EngineError, ExitCode
from glm5_service.rundir import RunDir, read

# a busy machine with two cores takes minutes to import vLLM in three processes
START_TIMEOUT_SECONDS = 900.0
STOP_TIMEOUT_SECONDS = 90.0
POLL_SECONDS = 0.5
LOG_LINES_SHOWN = 25


def serve_argv(model: Path, host: str, port: int, run_dir: Path) -> list[str]:
    """The command that serves `model` for the demo, on this host only and beside whatever else runs."""
    return [
        *(sys.executable, "-m", "glm5_service", "serve", str(model)),
        *("--host", host, "--port", str(port), "--run-dir", str(run_dir)),
        *("--set", f"health.host={host}", "--set", f"health.port={free_port()}"),
        # no endpoints are to be updated here
        *("--set", "drain.endpoint_grace_seconds=0"),
    ]


class Server:
    """A server started by `argv` that answers at `url`, alive inside its `with`; `run_dir` gets its log too."""

    def __init__(self, argv: list[str], url: str, run_dir: Path) -> None:
        self.url = url
        self.run_dir = run_dir
        self.exit_code = ExitCode.DONE.value
        self._argv = argv
        self._log = run_dir / "serve.log"

    def __enter__(self) -> Server:
        # a group of its own, so that Ctrl-C reaches the demo, and the demo stops the server in order
        self.run_dir.mkdir(parents=True, exist_ok=True)
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                self._argv, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        self._previous = signal.signal(signal.SIGTERM, _as_interrupt)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()
        signal.signal(signal.SIGTERM, self._previous)

    def wait(self, asker: Asker) -> None:
        """Return once the server has generated a token; raise EngineError if it ends or takes too long."""
        start = time.monotonic()
        with Progress() as progress:
            while not asker.answers():
                self._require_alive()
                elapsed = time.monotonic() - start
                if elapsed > START_TIMEOUT_SECONDS:
                    raise EngineError(
                        "the server did not answer",
                        self.url,
                        expected=f"a token in {START_TIMEOUT_SECONDS:g} s",
                    )
                state = read(RunDir(self.run_dir).engine, EngineState)
                progress.update(elapsed, f"{state.phase}: {state.reason}" if state else "starting")
                time.sleep(POLL_SECONDS)
        print(f"Ready after {time.monotonic() - start:.0f} s.")

    def stay(self, announce: Callable[[], None]) -> None:
        """Serve until Ctrl-C, SIGTERM or the server's own end; who reads what `announce` shows may end it at once."""
        try:
            announce()
            self._process.wait()
        except KeyboardInterrupt:
            print("\nStopping.", flush=True)

    def _require_alive(self) -> None:
        code = self._process.poll()
        if code is not None:
            error = EngineError("`glm5 serve` ended before it answered", self._last_words())
            # the server's own code says more than "engine failed": 4 is a wrong model file
            if code in list(ExitCode):
                error.exit_code = ExitCode(code)
            raise error

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines()
        return "its log ends with\n" + "\n".join(lines[-LOG_LINES_SHOWN:])

    def _stop(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(STOP_TIMEOUT_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self.exit_code = self._process.wait()


def _as_interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def free_port() -> int:
    """A port of this host that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
