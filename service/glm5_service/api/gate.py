"""ASGI middleware for vLLM's `--middleware`: allow-list, limits of bodies, request ids, draining, request counts.

The supervisor asks it over `/_glm5/`, with the pod's own token. Next hop: vLLM's application.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import os
import re
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import asdict, dataclass, field
from typing import Any

from glm5_service.api.policy import (
    DRAIN_PATH,
    INTERNAL_HEADER,
    REQUEST_ID_HEADER,
    REQUESTS_PATH,
    VARIABLE,
    GatePolicy,
)

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_RETRY_AFTER_SECONDS = 10
# why a request is refused -> status and type of the error
REFUSALS = {
    "route": (404, "NotFoundError"),
    "draining": (503, "ServiceUnavailableError"),
    "size": (413, "BadRequestError"),
    "upload": (408, "RequestTimeoutError"),
}
_GONE: Message = {"type": "http.disconnect"}
log = logging.getLogger("glm5.api")


@dataclass
class Traffic:
    """User requests since the start of the API server; the pod's own requests are not among them.

    A request is `uploading` until its body is whole, for the engine cannot have it before, and `running` from then on.
    `finished` are those that ended without being refused. `sent` counts the parts of successful answers: the only sign of
    life where the engine's counters cannot be read.
    """

    uploading: int = 0
    running: int = 0
    finished: int = 0
    sent: int = 0
    refused: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REFUSALS, 0))
    draining: bool = False


class Gate:
    """Outermost middleware of the API server; its policy comes from the environment unless given."""

    def __init__(self, app: App, policy: GatePolicy | None = None) -> None:
        self._app = app
        self._policy = policy or GatePolicy.from_json(os.environ[VARIABLE])
        self.traffic = Traffic()
        if not log.handlers:
            handler = logging.StreamHandler(sys.stderr)
            form = "glm5 %(levelname)s %(asctime)s %(message)s"
            handler.setFormatter(logging.Formatter(form, "%m-%d %H:%M:%S"))
            log.addHandler(handler)
            log.setLevel(logging.INFO)
            log.propagate = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {
            name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]
        }
        if hmac.compare_digest(headers.get(INTERNAL_HEADER, "").encode(), self._policy.token.encode()):
            await self._internal(scope, receive, send)
        else:
            await self._user(scope, receive, send, headers)

    async def _internal(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Requests of the supervisor and the sidecar: every route, never counted, never refused."""
        if scope["path"] == DRAIN_PATH and scope["method"] == "POST":
            self.traffic.draining = True
        elif scope["path"] != REQUESTS_PATH:
            await self._app(scope, receive, send)
            return
        await _respond(send, 200, asdict(self.traffic), {})

    async def _user(self, scope: Scope, receive: Receive, send: Send, headers: dict[str, str]) -> None:
        given = headers.get(REQUEST_ID_HEADER, "")
        exchange = _Exchange(
            request_id=given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex,
            policy=self._policy,
            traffic=self.traffic,
            receive_next=receive,
            send_next=send,
            counted=scope["method"] == "POST",
        )
        try:
            if refusal := self._refusal(scope, headers):
                self.traffic.refused[refusal[0]] += 1
                await _refuse(exchange.send, *refusal)
            else:
                await self._pass_on(scope, exchange)
        finally:
            if scope["path"] != "/health":
                log.info(
                    "request id=%s method=%s path=%s status=%d seconds=%.3f",
                    exchange.request_id,
                    scope["method"],
                    json.dumps(scope["path"]),
                    exchange.status,
                    time.monotonic() - exchange.started,
                )

    async def _pass_on(self, scope: Scope, exchange: _Exchange) -> None:
        # vLLM names the request after this header, so its log carries the same id
        scope["headers"] = [
            *_without(scope["headers"], REQUEST_ID_HEADER, INTERNAL_HEADER),
            (REQUEST_ID_HEADER.encode(), exchange.request_id.encode()),
        ]
        exchange.begin()
        try:
            await self._app(scope, exchange.receive, exchange.send)
        except Exception:
            if not exchange.is_cut:  # an application that was cut off may complain; its client has its answer
                raise
        finally:
            exchange.end()

    def _refusal(self, scope: Scope, headers: dict[str, str]) -> tuple[str, str] | None:
        """Reason and sentence, if the request may not pass."""
        if not self._policy.allows(scope["method"], scope["path"]):
            return "route", f"no such route: {scope['method']} {scope['path']}"
        if self.traffic.draining and scope["method"] == "POST":
            return "draining", "the server is shutting down; try again"
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > self._policy.max_body_bytes:
            return "size", _too_large(self._policy.max_body_bytes)
        return None


@dataclass
class _Exchange:
    """One user request on its way: counts it, keeps its status, adds its id, ends it where the body passes a limit."""

    request_id: str
    policy: GatePolicy
    traffic: Traffic
    receive_next: Receive
    send_next: Send
    counted: bool
    status: int = 0
    received_bytes: int = 0
    is_whole: bool = False
    is_cut: bool = False
    started: float = field(default_factory=time.monotonic)

    def begin(self) -> None:
        """Count it as one whose body is on its way."""
        self.traffic.uploading += self.counted

    def end(self) -> None:
        """Count it as ended."""
        if self.is_whole:
            self.traffic.running -= self.counted
        else:
            self.traffic.uploading -= self.counted
        self.traffic.finished += self.counted and not self.is_cut

    async def send(self, message: Message) -> None:
        """Pass a message of the response on, unless the request was cut."""
        if self.is_cut:
            return
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [
                *_without(message.get("headers", []), REQUEST_ID_HEADER),
                (REQUEST_ID_HEADER.encode(), self.request_id.encode()),
            ]
        elif message["type"] == "http.response.body" and self.counted and self.status == 200:
            self.traffic.sent += 1
        await self.send_next(message)

    async def receive(self) -> Message:
        """The next part of the body; for one too large or late the client is answered, and the application sees it go."""
        if self.is_cut:
            return _GONE
        if self.is_whole:
            return await self.receive_next()
        left = self.policy.upload_seconds - (time.monotonic() - self.started)
        try:
            async with asyncio.timeout(max(left, 0)):
                message = await self.receive_next()
        except TimeoutError:
            return await self._cut("upload", f"no whole request within {self.policy.upload_seconds:g} s")
        self.received_bytes += len(message.get("body", b""))
        if self.received_bytes > self.policy.max_body_bytes:
            return await self._cut("size", _too_large(self.policy.max_body_bytes))
        if message["type"] == "http.request" and not message.get("more_body", False):
            self.is_whole = True
            self.traffic.uploading -= self.counted
            self.traffic.running += self.counted
        return message

    async def _cut(self, reason: str, sentence: str) -> Message:
        if self.status == 0:
            self.traffic.refused[reason] += 1
            await _refuse(self.send, reason, sentence)
        self.is_cut = True
        return _GONE


def _too_large(limit: int) -> str:
    return f"request body is larger than {limit} bytes"


def _without(headers: list[tuple[bytes, bytes]], *names: str) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, value in headers if name.decode("latin-1").lower() not in names]


async def _refuse(send: Send, reason: str, sentence: str) -> None:
    """An error in the shape OpenAI clients read; the connection closes, so a retry may reach another pod."""
    status, kind = REFUSALS[reason]
    extra = {"connection": "close"}
    if reason == "draining":
        extra["retry-after"] = str(_RETRY_AFTER_SECONDS)
    await _respond(send, status, {"error": {"message": sentence, "type": kind, "code": status}}, extra)


async def _respond(send: Send, status: int, content: object, extra: dict[str, str]) -> None:
    body = json.dumps(content).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body))} | extra
    encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": encoded})
    await send({"type": "http.response.body", "body": body})
