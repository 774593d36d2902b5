"""One engine child in a session of its own: start, relay its log, signal, reap, kill what it leaves behind.

Knows nothing of vLLM or of phases; `supervisor` decides when to stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import psutil

from glm5_service.errors import EngineError
from glm5_service.redact import redact

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
# the end of a killed process with hundreds of GB mapped takes seconds, on a busy host more
_SWEEP_SECONDS, _RELAY_SECONDS = 60.0, 5.0
_libc = ctypes.CDLL(None, use_errno=True)


def adopt_orphans() -> None:
    """Make this process the parent of orphaned descendants, as PID 1 of a container is anyway."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _die_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


class EngineProcess:
    """A running child; `on_line` gets every line it logs, in a thread of its own."""

    def __init__(
        self, argv: Sequence[str], environment: Mapping[str, str], on_line: Callable[[str], None]
    ) -> None:
        self._on_line = on_line
        self._child = subprocess.Popen(
            argv,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_die_with_parent,  # noqa: PLW1509  one system call, safe between fork and exec
        )
        self.pid = self._child.pid
        # a thread, because a reader of our stdout that stalls must not stall the health server
        self._relay = threading.Thread(target=self._pump, name="engine-log", daemon=True)
        self._relay.start()

    def _pump(self) -> None:
        assert self._child.stdout is not None
        for raw in self._child.stdout:
            with contextlib.suppress(OSError):
                sys.stdout.buffer.write(
                    redact(raw.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
                )
                sys.stdout.buffer.flush()
            self._on_line(raw.decode("utf-8", "replace").rstrip("\n"))

    def signal(self, number: signal.Signals) -> None:
        """Signal the child alone; it passes on to its workers what they must know."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL the child and all of its session."""
        for member in (self.pid, *self._session()):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(member, signal.SIGKILL)

    def _session(self) -> Iterator[int]:
        """Processes of the child's session other than the child, also those that ended and are not yet reaped."""
        for pid in psutil.pids():
            with contextlib.suppress(OSError):
                if pid != self.pid and os.getsid(pid) == self.pid:
                    yield pid

    async def wait(self) -> int:
        """The child's return code (negative: the signal that ended it)."""
        return await asyncio.to_thread(self._child.wait)

    def sweep(self) -> int:
        """After the child's end: kill and reap what is left of its session; returns how many had to be killed.

        Looks again until nothing is left: a process is ours to reap only once its own parent has ended.
        """
        killed: set[int] = set()
        give_up_at = time.monotonic() + _SWEEP_SECONDS
        while (left := list(self._session())) and time.monotonic() < give_up_at:
            for pid in left:
                if not _reap(pid):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                    killed.add(pid)
            time.sleep(0.02)
        self._relay.join(timeout=_RELAY_SECONDS)
        return len(killed)


def ended_by_itself(code: int, lost: Sequence[str]) -> EngineError:
    """The error of a child that ended with `code` (negative: by a signal) and before that lost the processes `lost`."""
    fate = f"it lost {', '.join(lost)}, exit code {code}" if lost else f"exit code {code}"
    if code < 0 and not lost:
        with contextlib.suppress(ValueError):
            fate = f"killed by {signal.Signals(-code).name}"
    return EngineError(
        "the engine ended by itself",
        fate,
        expected="it to run until told to stop",
        remedy="Read its log above.",
    )


def _reap(pid: int) -> bool:
    """Whether a process that ended, and is this one's child, is gone now."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return False
