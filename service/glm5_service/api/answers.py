"""The gate's own answers: why a request is refused, in the shape OpenAI clients read, with vLLM's CORS headers."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

RETRY_AFTER_SECONDS = 10
# why a request is refused -> status and type of the error
REFUSALS = {
    "route": (404, "NotFoundError"),
    "draining": (503, "ServiceUnavailableError"),
    "busy": (503, "ServiceUnavailableError"),
    "size": (413, "BadRequestError"),
    "upload": (408, "RequestTimeoutError"),
    "length": (400, "BadRequestError"),
    "json": (400, "BadRequestError"),
    "elements": (413, "BadRequestError"),
    "shape": (400, "BadRequestError"),
    "grammar": (400, "BadRequestError"),
}
# those where the same request may pass later, here or in another pod
_LATER = frozenset({"draining", "busy"})


async def refuse(scope: Scope, send: Send, reason: str, sentence: str, *, more_body: bool = False) -> None:
    """An error; the connection closes, so a retry may reach another pod.

    With `more_body` the answer is there whole, but not ended, so that the server reads on meanwhile.
    """
    status, kind = REFUSALS[reason]
    extra = {"connection": "close"}
    if reason in _LATER:
        extra["retry-after"] = str(RETRY_AFTER_SECONDS)

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        content = {"error": {"message": sentence, "type": kind, "code": status}}
        await respond(send, status, content, extra, more_body=more_body)

    async def nothing() -> Message:
        return {"type": "http.disconnect"}

    options = _cors_options(scope)
    headers = Headers(scope=scope)
    if options is None or "origin" not in headers:
        await application(scope, nothing, send)
        return
    # not its __call__, which would grant a preflight request of a route that is not there
    await CORSMiddleware(application, **options).simple_response(
        scope, nothing, send, request_headers=headers
    )  # type: ignore[arg-type]


def _cors_options(scope: Scope) -> dict[str, Any] | None:
    """What vLLM gave Starlette's CORS middleware, which stands behind the gate."""
    for middleware in getattr(scope.get("app"), "user_middleware", ()):
        if middleware.cls is CORSMiddleware:
            options: dict[str, Any] = middleware.kwargs
            return options
    return None


async def respond(
    send: Send, status: int, content: object, extra: dict[str, str], *, more_body: bool = False
) -> None:
    """A JSON answer."""
    body = json.dumps(content).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body))} | extra
    encoded = [(name.encode(), value.encode("latin-1", "replace")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": encoded})
    await send({"type": "http.response.body", "body": body, "more_body": more_body})
