"""Ends a wait for a server that sends a byte now and then. Each byte restarts the socket's own time-out.

Covers everything before a body (TLS, a proxy's answer, the head of an answer) and the sizes between chunks.
"""

from __future__ import annotations

import math
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, cast

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection

LOOK_SECONDS = 1.0


class Deadline:
    """Calls `cut` once `armed` lasts longer than `seconds`; `cut` makes the waiting read return or raise."""

    def __init__(self, cut: Callable[[], object], seconds: float) -> None:
        self._cut, self._seconds, self._until = cut, seconds, math.inf
        self._ended, self._is_over = threading.Event(), False
        threading.Thread(target=self._watch, name="deadline", daemon=True).start()

    @contextmanager
    def armed(self) -> Iterator[None]:
        """Raises TimeoutError if the block was cut short, whatever it raised or returned."""
        self._until = time.monotonic() + self._seconds
        try:
            yield
        except Exception as error:
            if self._is_over:
                raise TimeoutError("deadline") from error
            raise
        finally:
            self._until = math.inf
        if self._is_over:
            # what was cut short may look like a short but proper end
            raise TimeoutError("deadline")

    def end(self) -> None:
        """Watch no longer."""
        self._ended.set()

    def _watch(self) -> None:
        while (left := self._until - time.monotonic()) > 0:
            if self._ended.wait(min(left, LOOK_SECONDS, self._seconds / 4)):
                return
        self._is_over = True
        with suppress(OSError, ValueError, RuntimeError):
            self._cut()


class _Timed(HTTPConnection):
    """Gives each step before the body `step_seconds`."""

    step_seconds: float
    _reached: socket.socket | None = None

    def _new_conn(self) -> socket.socket:
        found = super()._new_conn()
        # TLS takes the descriptor over, so a second one is kept to end the handshake by
        self._reached = found.dup()
        return found

    def connect(self) -> None:
        try:
            with _within(lambda: _shut(self._reached), self.step_seconds):
                super().connect()
        finally:
            if self._reached is not None:
                self._reached.close()

    def getresponse(self) -> Any:
        with _within(lambda: _shut(self.sock), self.step_seconds):
            return super().getresponse()


def pools(step_seconds: float) -> dict[str, type[urllib3.HTTPConnectionPool]]:
    """The pool classes of a PoolManager by scheme, with connections that give each step so long."""

    class Plain(_Timed):
        pass

    class Secure(_Timed, HTTPSConnection):
        pass

    Plain.step_seconds = Secure.step_seconds = step_seconds

    class PlainPool(urllib3.HTTPConnectionPool):
        ConnectionCls = Plain

    class SecurePool(urllib3.HTTPSConnectionPool):
        ConnectionCls = Secure

    return {"http": PlainPool, "https": SecurePool}


@contextmanager
def _within(cut: Callable[[], object], seconds: float) -> Iterator[None]:
    deadline = Deadline(cut, seconds)
    try:
        with deadline.armed():
            yield
    finally:
        deadline.end()


def _shut(connection: Any) -> None:
    """End both directions. TLS within TLS keeps its socket in an attribute, and a TLS socket's own method would have a
    thread that reads go on without TLS."""
    if connection is not None:
        socket.socket.shutdown(
            cast(socket.socket, getattr(connection, "socket", connection)), socket.SHUT_RDWR
        )
