"""A process and its children, ended together: what stays behind would keep the card's memory from the next run."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_groups: set[int] = set()


@contextmanager
def process_group(
    command: list[str], log: Path, environment: dict[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """The process in a group of its own, its output in `log`; at the end whatever is left of the group is killed."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
    _groups.add(process.pid)
    try:
        yield process
    finally:
        _kill(process.pid)
        process.wait()
        _groups.discard(process.pid)


def exit_code(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    """None where it still runs after this time."""
    with suppress(subprocess.TimeoutExpired):
        return process.wait(seconds)
    return None


def end_groups_on_termination() -> None:
    """A signal to this process's own group does not reach the others: pass the end on."""
    signal.signal(signal.SIGTERM, _end)


def _end(number: int, _frame: object) -> None:
    for group in list(_groups):
        _kill(group)
    # at once: a thread that waits for a killed run would start the next one
    os._exit(128 + number)


def _kill(group: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
