"""ASGI middleware for vLLM's `--middleware`: allow-list, limits of requests, request ids, draining, request counts.

The supervisor asks it over `/_glm5/`, with the pod's own token. Next hop: vLLM's application.
"""

from __future__ import annotations

import hmac
import json
import logging
import os
import re
import sys
import time
import uuid
from dataclasses import asdict

from glm5_service.api.answers import App, Receive, Scope, Send, respond
from glm5_service.api.exchange import Exchange, Traffic, announced_bytes, too_large, without
from glm5_service.api.policy import (
    DRAIN_PATH,
    INTERNAL_HEADER,
    REQUEST_ID_HEADER,
    REQUESTS_PATH,
    VARIABLE,
    GatePolicy,
)

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
log = logging.getLogger("glm5.api")


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
        await respond(send, 200, asdict(self.traffic), {})

    async def _user(self, scope: Scope, receive: Receive, send: Send, headers: dict[str, str]) -> None:
        given = headers.get(REQUEST_ID_HEADER, "")
        exchange = Exchange(
            scope=scope,
            request_id=given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex,
            policy=self._policy,
            traffic=self.traffic,
            receive_next=receive,
            send_next=send,
            counted=scope["method"] == "POST",
            content_type=headers.get("content-type", "").strip().lower(),
            waits_for_continue=headers.get("expect", "").lower() == "100-continue",
        )
        try:
            if refusal := self._refusal(scope, headers):
                await exchange.cut(*refusal)
            else:
                await self._pass_on(scope, exchange)
        finally:
            if scope["path"] != "/health":
                log.info(
                    "request id=%s method=%s path=%s status=%d seconds=%.3f",
                    exchange.request_id,
                    scope["method"],
                    json.dumps(scope["path"][:200]),
                    exchange.status,
                    time.monotonic() - exchange.started,
                )

    async def _pass_on(self, scope: Scope, exchange: Exchange) -> None:
        # vLLM names the request after this header, so its log carries the same id
        scope["headers"] = [
            *without(scope["headers"], REQUEST_ID_HEADER, INTERNAL_HEADER),
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
            return "route", f"no such route: {scope['method']} {scope['path'][:200]}"
        if self.traffic.draining and scope["method"] == "POST":
            return "draining", "the server is shutting down; try again"
        given = [value for name, value in scope["headers"] if name.lower() == b"content-length"]
        length = announced_bytes(headers.get("content-length"))
        if length is None or len(given) > 1 or (given and "transfer-encoding" in headers):
            text = headers["content-length"][:50]
            return (
                "length",
                f"Content-Length is {text!r}; expected one whole number, without Transfer-Encoding",
            )
        if length > self._policy.max_body_bytes:
            return "size", too_large(self._policy.max_body_bytes)
        return None
