"""The supervisor's end of the health server: starts the process, sends it every state. Never waits for it."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys

from glm5_service.contracts.command_lines import HEALTH_MODULE, HealthServerArguments
from glm5_service.contracts.engine import EngineState
from glm5_service.errors import EngineError
from glm5_service.redact import redact


class HealthServer:
    """A running health server. States go over a socket that keeps messages apart and drops what does not fit."""

    def __init__(self, first: EngineState, host: str, port: int, stale_seconds: float) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        descriptor = theirs.fileno()
        arguments = HealthServerArguments(
            descriptor=descriptor, host=host, port=port, stale_seconds=stale_seconds
        )
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", HEALTH_MODULE, *arguments.argv()],
                pass_fds=[descriptor],
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,  # a signal to the terminal's group must not end the probes before the drain
            )
        self._states = ours
        self._address = f"{host}:{port}"
        self.post(first)

    def wait_until_listening(self) -> None:
        """Return once it answers; raises EngineError if it cannot listen."""
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            raise EngineError("the health server cannot listen", self._address, expected="a free port")

    def post(self, state: EngineState) -> None:
        """Send a state. A state that cannot be sent now is dropped; the next one follows soon."""
        with contextlib.suppress(OSError):
            self._states.send(redact(state.model_dump_json()).encode(), socket.MSG_DONTWAIT)

    def stop(self) -> None:
        """End the process."""
        self._states.close()
        self._process.kill()
        self._process.wait()
