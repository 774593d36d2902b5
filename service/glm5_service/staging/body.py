"""The body of an HTTP answer, received straight into the place its bytes are written from."""

from __future__ import annotations

import http.client
import ssl
from contextlib import suppress
from typing import cast

from urllib3.exceptions import HTTPError
from urllib3.response import BaseHTTPResponse

from glm5_service.staging.answers import network_fault
from glm5_service.staging.faults import Transient
from glm5_service.staging.reasons import Reason


class HttpStream:
    """The body of one answer. `whole` is True if it starts at byte 0 of the file in spite of the range."""

    def __init__(self, response: BaseHTTPResponse, *, whole: bool) -> None:
        self._response, self.whole = response, whole
        # urllib3 only hands out copies; a tenth of all CPU went into them
        self._body = cast(http.client.HTTPResponse, response._fp)  # type: ignore[attr-defined]

    def read_into(self, room: memoryview) -> int:
        """Put what has arrived into `room`, as much as fits; returns the bytes, 0 at the end."""
        try:
            return self._receive(room)
        except (HTTPError, TimeoutError, ssl.SSLError) as error:
            raise network_fault(error, "while reading") from error
        except OSError as error:
            raise Transient(Reason.UNREACHABLE, f"connection broke: {error}") from error

    def _receive(self, room: memoryview) -> int:
        body = self._body
        if body.length is None or body.fp is None:
            # in chunks, or until the connection ends: urllib3 knows how
            data = self._response.read1(len(room), decode_content=False)
            room[: len(data)] = data
            return len(data)
        count = body.fp.readinto1(room[: body.length])
        body.length -= count
        if not body.length:
            # at its end, so that the connection can take the next request
            body.close()
        return count

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
