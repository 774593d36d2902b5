"""Limits of connections for every HTTP server of this project: size, count and time of heads, idle time, number.

uvicorn limits only what its slower parser (h11) buffers, and no time before the first request. This is its faster
protocol with the limits around it.
"""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from glm5_service.api.policy import VARIABLE, ConnectionLimits, GatePolicy

_PHRASES = {400: "Bad Request", 408: "Request Timeout", 431: "Request Header Fields Too Large"}


class _HeadError(Exception):
    """A head passes a limit."""


class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's protocol with `limits`; use `limited` or `ApiProtocol`.

    A connection without a whole head is the first to go where too many are open.
    """

    limits: ConnectionLimits

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.timeout_keep_alive = self.limits.idle_seconds  # type: ignore[assignment]
        self._beside_body = 0
        self._head_bytes = 0
        self._fault: tuple[int, str] | None = None
        self._head_timer: asyncio.TimerHandle | None = None
        self._in_message = False
        # connections of this server whose head is on its way, the longest first
        state = vars(self.server_state)
        self._waiting: dict[LimitedProtocol, None] = state.setdefault("glm5_waiting", {})

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Refuse a connection too many, or make room for it."""
        super().connection_made(transport)
        if len(self.connections) > self.limits.connections:
            oldest = next(iter(self._waiting), self)
            oldest._end_head()
            oldest.transport.abort()
            if oldest is self:
                return
        self._start_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the timers."""
        self._end_head()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Feed the parser, and count what is not part of a body: heads, trailers and what frames chunks."""
        if self.transport.is_closing():
            return
        self._beside_body += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._beside_body > self.limits.head_bytes:
            self._refuse(431, f"request headers are larger than {self.limits.head_bytes} bytes")
        elif not self._in_message and (self.cycle is None or self.cycle.response_complete):
            # empty lines end the idle time and begin no head
            self._start_head()

    def on_message_begin(self) -> None:
        """A head begins."""
        super().on_message_begin()
        self._in_message = True
        self._head_bytes = 0
        self._start_head()

    def on_url(self, url: bytes) -> None:
        """Part of the address."""
        self._take(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A whole header, or a trailer."""
        self._take(len(name) + len(value) + 4)
        if len(self.headers) >= self.limits.head_count:
            self._fault = 431, f"more than {self.limits.head_count} request headers"
            raise _HeadError
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is whole."""
        self._end_head()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Part of a body; what frames it may be as much again."""
        self._beside_body -= 2 * len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is whole."""
        self._in_message = False
        self._beside_body = 0
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """The parser gave up: for a limit of ours, or because it is no HTTP."""
        status, sentence = self._fault or (400, msg)
        self._refuse(status, sentence)

    def _take(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > self.limits.head_bytes:
            self._fault = 431, f"request headers are larger than {self.limits.head_bytes} bytes"
            raise _HeadError

    def _start_head(self) -> None:
        self._end_head()
        self._head_timer = self.loop.call_later(self.limits.head_seconds, self._too_late)
        self._waiting[self] = None

    def _end_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        self._waiting.pop(self, None)

    def _too_late(self) -> None:
        self._end_head()
        if self._in_message:
            self._refuse(408, f"no whole request headers within {self.limits.head_seconds:g} s")
        elif not self.transport.is_closing():
            self.transport.close()

    def _refuse(self, status: int, sentence: str) -> None:
        """Answer where no answer has begun, and close."""
        self._end_head()
        if self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete:
            error = {"message": sentence, "type": "BadRequestError", "code": status}
            body = json.dumps({"error": error}).encode()
            head = (
                f"HTTP/1.1 {status} {_PHRASES[status]}\r\ncontent-type: application/json\r\n"
                f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
        self.transport.close()


def limited(limits: ConnectionLimits) -> type[LimitedProtocol]:
    """A protocol class for uvicorn's `http` with these limits."""
    return type("LimitedProtocol", (LimitedProtocol,), {"limits": limits})


class ApiProtocol(LimitedProtocol):
    """That of the engine's API server, which knows it by name; its limits are the gate's."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.limits = GatePolicy.from_json(os.environ[VARIABLE]).connection
        super().__init__(*args, **kwargs)
