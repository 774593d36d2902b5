"""Receives the body of an HTTP answer straight into the memory that it is written from."""

from __future__ import annotations

import http.client
import select
import socket
import ssl
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import cast

from urllib3.exceptions import HTTPError
from urllib3.response import BaseHTTPResponse

from glm5_service.staging.reasons import Reason, Transient
from glm5_service.staging.sources.http.answers import network_fault
from glm5_service.staging.sources.http.deadline import Deadline

# a few large reads; far below what a socket's buffer holds, so the sender need not pause
GOOD_DEAL_BYTES = 256 << 10


def body_of(response: BaseHTTPResponse, *, whole: bool, stall_seconds: float) -> HttpStream:
    """The body of an answer. `whole`: it starts at byte 0 of the file in spite of the range."""
    # urllib3 only hands out copies; a tenth of all CPU went into them
    body = cast(http.client.HTTPResponse, response._fp)  # type: ignore[attr-defined]
    # TLS within the TLS of a proxy has no socket of its own to read from
    source = getattr(getattr(body.fp, "raw", None), "_sock", None)
    if body.length is None or not isinstance(source, socket.socket):
        return UnsizedStream(response, whole, stall_seconds)
    return SizedStream(response, whole, body, source, stall_seconds)


class HttpStream(ABC):
    """A `Stream` over one answer."""

    ended = False

    def __init__(self, response: BaseHTTPResponse, whole: bool) -> None:
        self._response, self.whole = response, whole

    @abstractmethod
    def wait(self, seconds: float) -> None:
        """See `Stream`."""

    @abstractmethod
    def read_into(self, room: memoryview) -> int | None:
        """See `Stream`."""

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


class SizedStream(HttpStream):
    """A body whose length was stated, read from its socket without urllib3 and without blocking."""

    def __init__(
        self,
        response: BaseHTTPResponse,
        whole: bool,
        body: http.client.HTTPResponse,
        source: socket.socket,
        stall_seconds: float,
    ) -> None:
        super().__init__(response, whole)
        self._body, self._left, self._stall_seconds = body, cast(int, body.length), stall_seconds
        self._silence = 0.0
        # the first bytes may have come with the head
        self._has_more = True
        self._socket = source
        self._socket.setblocking(False)
        self._arrivals = select.poll()
        self._arrivals.register(self._socket, select.POLLIN)
        self._least = 1
        self._expect()

    def wait(self, seconds: float) -> None:
        if not self._has_more:
            begun = time.monotonic()
            self._arrivals.poll(seconds * 1000)
            self._silence += time.monotonic() - begun

    def read_into(self, room: memoryview) -> int | None:
        if not self._left:
            return 0
        room = room[: self._left]
        count, more = 0, None
        try:
            # with TLS a read gives one record
            while count < len(room) and (more := self._body.fp.readinto1(room[count:])):
                count += more
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            more = None
        except OSError as error:
            # with bytes in hand the next read will fail as well
            if not count:
                raise _fault(error) from error
        self._has_more = count == len(room)
        if count:
            self._took(count)
        elif more is None:
            if self._silence > self._stall_seconds:
                raise Transient(Reason.STALLED, f"no bytes for {self._silence:.0f} s")
            return None
        return count

    def _took(self, count: int) -> None:
        self._silence = 0.0
        self._left -= count
        self._expect()
        self.ended = not self._left

    def close(self, *, finished: bool) -> None:
        if not self._left:
            # at its end, so that the connection can take the next request
            self._body.close()
        super().close(finished=finished)

    def _expect(self) -> None:
        """Have `wait` end at a good deal; near the end at a byte, which the head of the next answer needs as well."""
        least = GOOD_DEAL_BYTES if self._left >= 2 * GOOD_DEAL_BYTES else 1
        if least != self._least:
            self._least = least
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, least)


class UnsizedStream(HttpStream):
    """A body in chunks, until the connection ends, or through TLS in TLS: urllib3 reads it, and blocks."""

    def __init__(self, response: BaseHTTPResponse, whole: bool, stall_seconds: float) -> None:
        super().__init__(response, whole)
        self._ahead = bytearray()
        # the line before a chunk may drip without end, and bytes are in sight only behind it
        self._deadline = Deadline(response.shutdown, stall_seconds)

    def wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        try:
            while len(self._ahead) < GOOD_DEAL_BYTES and time.monotonic() < until:
                with self._deadline.armed():
                    data = self._response.read1(GOOD_DEAL_BYTES, decode_content=False)
                if not data:
                    break
                self._ahead += data
        except (HTTPError, OSError) as error:
            if not self._ahead:
                raise _fault(error) from error

    def close(self, *, finished: bool) -> None:
        self._deadline.end()
        super().close(finished=finished)

    def read_into(self, room: memoryview) -> int:
        count = min(len(room), len(self._ahead))
        room[:count] = self._ahead[:count]
        del self._ahead[:count]
        return count


def _fault(error: Exception) -> Exception:
    """What a body that broke off stands for."""
    if isinstance(error, (HTTPError, TimeoutError, ssl.SSLError)):
        return network_fault(error, "while reading")
    return Transient(Reason.UNREACHABLE, f"connection broke: {error}")
