"""One user request on its way through the gate: collects and checks its body, counts it, ends it at a limit."""

from __future__ import annotations

import asyncio
import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from glm5_service.api.answers import REFUSALS, Message, Receive, Scope, Send, refuse
from glm5_service.api.body import BodyError
from glm5_service.api.policy import REQUEST_ID_HEADER, GatePolicy
from glm5_service.api.rules import check

GONE: Message = {"type": "http.disconnect"}
# parsing less than this takes less than a millisecond
_INLINE_BYTES = 8 * 1024
# one at a time: parsing holds the interpreter, and its memory is bounded by one body
_checks = ThreadPoolExecutor(max_workers=1, thread_name_prefix="glm5-body")
_LENGTH = re.compile(r"[0-9]+")


@dataclass
class Traffic:
    """User requests since the start of the API server; the pod's own requests are not among them.

    A request is `uploading` until its body is whole, for the engine cannot have it before, and `running` from then on.
    `finished` are those that ended without being refused. `sent` counts the parts of successful answers: the only sign of
    life where the engine's counters cannot be read. `held_bytes` are those of bodies that are here now.
    """

    uploading: int = 0
    running: int = 0
    finished: int = 0
    sent: int = 0
    refused: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REFUSALS, 0))
    draining: bool = False
    held_bytes: int = 0


def announced_bytes(value: str | None) -> int | None:
    """The number in a Content-Length header, blanks around it allowed; None if it is none."""
    if value is None:
        return 0
    text = value.strip(" \t")
    if not _LENGTH.fullmatch(text):
        return None
    digits = text.lstrip("0") or "0"
    # more than any limit; python refuses to read thousands of digits
    return int(digits) if len(digits) < 20 else 10**20


@dataclass
class Exchange:
    """A request. Its application calls `receive` and `send`; `begin` and `end` go around that."""

    scope: Scope
    request_id: str
    policy: GatePolicy
    traffic: Traffic
    receive_next: Receive
    send_next: Send
    counted: bool
    content_type: str = ""
    waits_for_continue: bool = False
    status: int = 0
    is_whole: bool = False
    is_cut: bool = False
    started: float = field(default_factory=time.monotonic)
    _body: bytearray = field(default_factory=bytearray)
    _held: int = 0
    _has_ended: bool = False

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
        self._release()

    async def send(self, message: Message) -> None:
        """Pass a message of the application's response on, unless the request was cut."""
        if not self.is_cut:
            await self._send(message)

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [
                *without(message.get("headers", []), REQUEST_ID_HEADER),
                (REQUEST_ID_HEADER.encode(), self.request_id.encode()),
            ]
        elif message["type"] == "http.response.body" and self.counted and self.status == 200:
            self.traffic.sent += 1
        await self.send_next(message)

    async def receive(self) -> Message:
        """The whole body; for one too large, late or costly the client is answered, and the application sees it go.

        It is read when the application asks for it, so that a client without the key can't have it held.
        """
        if self.is_cut:
            return GONE
        if self.is_whole:
            return await self.receive_next()
        try:
            if not await self._collect():
                return GONE
            await self._check()
        except BodyError as error:
            await self.cut(error.reason, str(error))
            return GONE
        self.is_whole = True
        self.traffic.uploading -= self.counted
        self.traffic.running += self.counted
        body, self._body = bytes(self._body), bytearray()
        return {"type": "http.request", "body": body, "more_body": False}

    async def _collect(self) -> bool:
        """Read to the end of the body; False if the client has gone."""
        policy = self.policy
        late = self.started + policy.upload_seconds
        while True:
            try:
                async with asyncio.timeout(max(late - time.monotonic(), 0)):
                    message = await self.receive_next()
            except TimeoutError:
                raise BodyError("upload", f"no whole request within {policy.upload_seconds:g} s") from None
            if message["type"] != "http.request":
                return False
            self._has_ended = not message.get("more_body", False)
            self._take(message.get("body", b""))
            if self._has_ended:
                return True

    def _take(self, part: bytes) -> None:
        policy, traffic = self.policy, self.traffic
        self._body += part
        self._held += len(part)
        traffic.held_bytes += len(part)
        if len(self._body) > policy.max_body_bytes:
            raise BodyError("size", too_large(policy.max_body_bytes))
        if traffic.held_bytes > policy.max_bodies_bytes and len(self._body) > policy.small_body_bytes:
            raise BodyError("busy", "the server holds as many large requests as it may; try again")

    async def _check(self) -> None:
        # forms are for routes that a setting opens, such as those of audio
        is_form = self.content_type.startswith("multipart/") and not self.policy.reads_json(
            self.scope["path"]
        )
        if not self._body or is_form:
            return
        if len(self._body) <= _INLINE_BYTES:
            check(bytes(self._body), self.policy)
        else:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(_checks, check, bytes(self._body), self.policy)

    def _release(self) -> None:
        self.traffic.held_bytes -= self._held
        self._held = 0
        self._body = bytearray()

    async def cut(self, reason: str, sentence: str) -> None:
        """Refuse it, and read on for a while: a connection closed over unread data loses the answer."""
        self.is_cut = True
        self._release()
        if self.status:  # the application answered first
            return
        self.traffic.refused[reason] += 1
        await refuse(self.scope, self._send, reason, sentence, more_body=True)
        await self._drain()
        await self._send({"type": "http.response.body", "body": b""})

    async def _drain(self) -> None:
        left = self.policy.drain_bytes
        if self.waits_for_continue or self._has_ended:
            return
        try:
            async with asyncio.timeout(self.policy.drain_seconds):
                while left > 0:
                    message = await self.receive_next()
                    left -= len(message.get("body", b""))
                    if message["type"] != "http.request" or not message.get("more_body", False):
                        return
        except TimeoutError:
            return


def too_large(limit: int) -> str:
    """The sentence for a body beyond the limit."""
    return f"request body is larger than {limit} bytes"


def without(headers: list[tuple[bytes, bytes]], *names: str) -> list[tuple[bytes, bytes]]:
    """The headers but those of these names, which are lower case."""
    return [(name, value) for name, value in headers if name.decode("latin-1").lower() not in names]
