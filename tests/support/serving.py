"""A running `glm5 serve` for tests, with the real engine or a stand-in, and what its probes say."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.support.glm5_command import PATIENCE_SECONDS, start_glm5

# 25 s on two idle cores; a machine that does much else besides takes minutes
START_SECONDS = float(os.environ.get("ENGINE_START_SECONDS", "600"))
_given: set[int] = set()


def free_port() -> int:
    """A port nobody listens on now, and never the same one twice: who got it may listen much later."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        if port not in _given:
            _given.add(port)
            return port


@contextlib.contextmanager
def suspended(process: psutil.Process) -> Iterator[None]:
    """The process stands still meanwhile (SIGSTOP); it may be killed."""
    process.suspend()
    try:
        yield
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.resume()


@dataclass
class Serving:
    """One `glm5 serve`."""

    process: subprocess.Popen[bytes]
    run_dir: Path
    port: int
    health_port: int

    @property
    def api(self) -> str:
        """Base address of the API."""
        return f"http://127.0.0.1:{self.port}"

    def probe(self, name: str) -> tuple[int, dict[str, Any]]:
        """Status and body of a probe; 0 if nothing answers."""
        return _get(self.health_port, f"/{name}", {})

    def status(self) -> dict[str, Any]:
        """The whole state."""
        return self.probe("status")[1]

    def engine_json(self) -> dict[str, Any]:
        """What engine.json says."""
        state: dict[str, Any] = json.loads((self.run_dir / "engine.json").read_text())
        return state

    def engine_process(self, title: str) -> psutil.Process:
        """The engine's process of that title, such as EngineCore."""
        for child in psutil.Process(self.status()["pid"]).children(recursive=True):
            # not every child lasts
            with contextlib.suppress(psutil.NoSuchProcess):
                if child.name().startswith(f"VLLM::{title}"):
                    return child
        raise AssertionError(f"no process {title}")

    def internal(self) -> dict[str, str]:
        """The header that opens the API's inner routes."""
        return {"X-Glm5-Internal": (self.run_dir / "internal-token").read_text()}

    def gate(self) -> dict[str, Any]:
        """User requests as the gate counts them at this moment; nothing if it does not answer."""
        return _get(self.port, "/_glm5/requests", self.internal())[1]

    def until(self, condition: Callable[[], object], timeout: float = PATIENCE_SECONDS) -> float:
        """Wait for a condition; returns how long it took, fails with the state after `timeout`."""
        started = time.monotonic()
        while not condition():
            waited = time.monotonic() - started
            assert waited < timeout, f"not within {timeout} s: {self.status()} {self.log()[-3000:]}"
            time.sleep(0.1)
        return time.monotonic() - started

    def until_ready(self, timeout: float = START_SECONDS) -> float:
        """Wait until /readyz is 200, by default for as long as a real engine may take to start."""

        def is_ready() -> bool:
            ended = self.process.poll()
            assert ended is None, f"ended with {ended}: {self.log()[-3000:]}"
            return self.probe("readyz")[0] == 200

        return self.until(is_ready, timeout)

    def log(self) -> str:
        """What it and its engine have said."""
        return (self.run_dir / "serve.log").read_text(errors="replace")

    def stop(self) -> None:
        """End it, whatever state it is in."""
        while self.process.poll() is None:
            # the second signal kills the engine's whole session, stopped processes too
            self.process.terminate()
            time.sleep(0.2)


def _get(port: int, path: str, headers: dict[str, str]) -> tuple[int, dict[str, Any]]:
    # not httpx, which reads all certificate authorities for every new client
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_SECONDS)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    except (OSError, http.client.HTTPException):
        return 0, {}
    finally:
        connection.close()


def start_serving(
    model: Path,
    run_dir: Path,
    *settings: str,
    fake: bool = False,
    arguments: tuple[str, ...] = (),
    ports: tuple[int, int] | None = None,
    **env: str,
) -> Serving:
    """Start `glm5 serve MODEL`, on free ports or those of API and health, with further settings as NAME=VALUE."""
    port, health_port = ports or (free_port(), free_port())
    pairs = [
        f"health.port={health_port}",
        "health.host=127.0.0.1",
        f"drain.termination_log={run_dir / 'end'}",
    ]
    process = start_glm5(
        "serve", model, "--run-dir", run_dir, "--host", "127.0.0.1", "--port", port,
        *(part for pair in (*pairs, *settings) for part in ("--set", pair)), *arguments,
        log=run_dir / "serve.log", fake=fake, **env,
    )  # fmt: skip
    return Serving(process, run_dir, port, health_port)
