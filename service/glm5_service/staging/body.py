"""The body of an HTTP answer, received straight into the place its bytes are written from."""

from __future__ import annotations

import http.client
import select
import socket
import ssl
import time
from contextlib import suppress
from typing import cast

from urllib3.exceptions import HTTPError
from urllib3.response import BaseHTTPResponse

from glm5_service.staging.answers import network_fault
from glm5_service.staging.faults import Transient
from glm5_service.staging.reasons import Reason

# a few large reads; far below what a socket's buffer holds, so the sender need not pause
GOOD_DEAL_BYTES = 256 << 10


class HttpStream:
    """The body of one answer. `whole` is True if it starts at byte 0 of the file in spite of the range."""

    def __init__(self, response: BaseHTTPResponse, *, whole: bool, stall_seconds: float) -> None:
        self._response, self.whole, self._stall_seconds = response, whole, stall_seconds
        # urllib3 only hands out copies; a tenth of all CPU went into them
        self._body = cast(http.client.HTTPResponse, response._fp)  # type: ignore[attr-defined]
        self._silence = 0.0
        # the first bytes may have come with the head
        self._has_more = True
        # None: in chunks, or until the connection ends; urllib3 knows how, and waits for them itself
        self._left = self._body.length if self._body.fp is not None else None
        if self._left is not None:
            self._socket = cast(socket.socket, self._body.fp.raw._sock)  # type: ignore[attr-defined]
            self._socket.setblocking(False)
            self._arrivals = select.poll()
            self._arrivals.register(self._socket, select.POLLIN)
            self._least = 1
            self._expect(self._left)

    def wait(self, seconds: float) -> None:
        """Wait until a good deal has arrived, or the end, at most so long."""
        if self._left is not None and not self._has_more:
            begun = time.monotonic()
            self._arrivals.poll(seconds * 1000)
            self._silence += time.monotonic() - begun

    def read_into(self, room: memoryview) -> int | None:
        """Put what has arrived into `room`, as much as fits; returns the bytes, 0 at the end, None if there are none
        yet. Raises Transient, also when nothing came through `stall_seconds` of waiting."""
        try:
            return self._receive_unsized(room) if self._left is None else self._receive(room, self._left)
        except (HTTPError, TimeoutError, ssl.SSLError) as error:
            raise network_fault(error, "while reading") from error
        except OSError as error:
            raise Transient(Reason.UNREACHABLE, f"connection broke: {error}") from error

    def _receive_unsized(self, room: memoryview) -> int:
        data = self._response.read1(len(room), decode_content=False)
        room[: len(data)] = data
        return len(data)

    def _receive(self, room: memoryview, left: int) -> int | None:
        room = room[:left]
        count, more = 0, None
        try:
            # with TLS a read gives one record
            while count < len(room) and (more := self._body.fp.readinto1(room[count:])):
                count += more
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            more = None
        except OSError:
            # the next read fails as well
            if not count:
                raise
        self._has_more = count == len(room)
        if count:
            self._silence, self._left = 0.0, left - count
            self._expect(self._left)
            if not self._left:
                # at its end, so that the connection can take the next request
                self._body.close()
        elif more is None:
            if self._silence > self._stall_seconds:
                raise Transient(Reason.STALLED, f"no bytes for {self._silence:.0f} s")
            return None
        return count

    def _expect(self, left: int) -> None:
        """Have `wait` end at a good deal; near the end at a byte, which the head of the next answer needs as well."""
        least = GOOD_DEAL_BYTES if left >= 2 * GOOD_DEAL_BYTES else 1
        if least != self._least:
            self._least = least
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, least)

    def close(self, *, finished: bool) -> None:
        """Give the connection back if its body was read to the end, else end it."""
        if finished:
            self._response.release_conn()
        else:
            self._response.close()

    def abort(self) -> None:
        """Wake a thread that waits for bytes; it sees the end of the body."""
        with suppress(ValueError, OSError, RuntimeError):
            self._response.shutdown()
