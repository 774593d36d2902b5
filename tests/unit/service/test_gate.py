"""The API's gate: what passes, what is refused, what is counted."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from glm5_service.api.gate import Gate
from glm5_service.api.policy import PUBLIC_ROUTES, GatePolicy

TOKEN = "inner"
INNER = {"X-Glm5-Internal": TOKEN}


def _app() -> Starlette:
    async def echo(request: Request) -> JSONResponse:
        body = await request.body()
        return JSONResponse(
            {"path": request.url.path, "id": request.headers["x-request-id"], "bytes": len(body)}
        )

    async def stream(request: Request) -> StreamingResponse:
        async def parts() -> AsyncIterator[str]:
            for _ in range(3):
                yield "data\n"

        return StreamingResponse(parts())

    async def plain(request: Request) -> JSONResponse:
        return JSONResponse({})

    return Starlette(
        routes=[
            Route("/v1/chat/completions", stream, methods=["POST"]),
            Route("/v1/completions", echo, methods=["POST", "OPTIONS"]),
            Route("/{rest:path}", plain, methods=["GET", "POST", "PUT", "DELETE"]),
        ]
    )


class Client:
    """Speaks to the gate in this process."""

    def __init__(self, **policy: Any) -> None:
        self.gate = Gate(_app(), GatePolicy(TOKEN, **policy))

    def send(self, method: str, path: str, **kwargs: Any) -> httpx.Response:
        async def call() -> httpx.Response:
            transport = httpx.ASGITransport(app=self.gate)  # type: ignore[arg-type]
            async with httpx.AsyncClient(transport=transport, base_url="http://engine") as client:
                return await client.request(method, path, **kwargs)

        return asyncio.run(call())


class _Sent(list[Any]):
    """The messages of an answer."""

    async def __call__(self, message: Any) -> None:
        self.append(message)


def _scope() -> dict[str, Any]:
    return {"type": "http", "method": "POST", "path": "/v1/completions", "query_string": b"", "headers": []}


def _client(*messages: Any) -> Any:
    """Sends these messages and then nothing more."""
    left = list(messages)

    async def receive() -> Any:
        if not left:
            await asyncio.sleep(60)
        return left.pop(0)

    return receive


@pytest.mark.parametrize("route", [*PUBLIC_ROUTES, "OPTIONS:/v1/completions"])
def test_listed_routes_pass(route: str) -> None:
    """Everything an OpenAI client needs reaches vLLM."""
    method, _, path = route.partition(":")
    assert Client().send(method, path.replace("*", "glm-5")).status_code == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/metrics"),
        ("GET", "/docs"),
        ("POST", "/tokenize"),
        ("POST", "/v1/load_lora_adapter"),
        ("POST", "/v1/responses"),
        ("DELETE", "/v1/completions"),
        ("GET", "/v1/completions"),
        ("POST", "/v1/models"),
        ("GET", "/v1/models/a/b"),
        ("GET", "/health/"),
        ("GET", "//health"),
        ("POST", "/v1/chat/completions/batch"),
        ("GET", "/_glm5/requests"),
        ("POST", "/_glm5/drain"),
    ],
)
def test_everything_else_is_refused(method: str, path: str) -> None:
    """A route that is not listed is a 404 in the shape OpenAI clients read, and never reaches vLLM."""
    client = Client()
    answer = client.send(method, path)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, 404)
    assert client.gate.traffic.refused["route"] == 1
    assert not client.gate.traffic.draining


def test_extra_routes_pass() -> None:
    """Settings can open further routes."""
    assert Client(routes=("POST:/v1/responses",)).send("POST", "/v1/responses").status_code == 200


@pytest.mark.parametrize("token", ["", "wrong", "inner2"])
def test_inner_routes_need_the_token(token: str) -> None:
    """Only the pod's own parts reach the inner routes, /metrics among them."""
    client = Client()
    assert client.send("GET", "/metrics", headers=INNER).status_code == 200
    assert client.send("GET", "/metrics", headers={"X-Glm5-Internal": token}).status_code == 404


@pytest.mark.parametrize("chunked", [False, True], ids=["with length", "without length"])
def test_large_bodies_are_refused(chunked: bool) -> None:
    """The limit holds whether or not the client says how much it sends."""

    async def parts() -> AsyncIterator[bytes]:
        for _ in range(11):
            yield b"x" * 100

    client = Client(max_body_bytes=1000)
    answer = client.send("POST", "/v1/completions", content=parts() if chunked else b"x" * 1100)
    assert (answer.status_code, answer.json()["error"]["message"]) == (
        413,
        "request body is larger than 1000 bytes",
    )
    assert client.send("POST", "/v1/completions", content=b"x" * 1000).json()["bytes"] == 1000
    assert client.gate.traffic.refused["size"] == 1


@pytest.mark.parametrize(
    ("given", "kept"), [("abc-1", True), ("", False), ("a b\tc", False), ("x" * 129, False)]
)
def test_request_ids(given: str, kept: bool) -> None:
    """A sane id of the client is kept, any other replaced; vLLM and the client get the same one."""
    answer = Client().send("POST", "/v1/completions", headers={"X-Request-Id": given}, content=b"")
    assert answer.headers["x-request-id"] == answer.json()["id"]
    assert (answer.json()["id"] == given) is kept
    assert len(answer.json()["id"]) <= 128


def test_draining_refuses_new_work_and_says_when_to_retry() -> None:
    """After the drain call, users get 503 with Retry-After on a closed connection; the pod's own calls still pass."""
    client = Client()
    assert client.send("POST", "/_glm5/drain", headers=INNER).json()["draining"] is True
    answer = client.send("POST", "/v1/completions")
    assert (answer.status_code, answer.headers["retry-after"], answer.headers["connection"]) == (
        503,
        "10",
        "close",
    )
    assert client.send("GET", "/v1/models").status_code == 200
    assert client.send("POST", "/v1/completions", headers=INNER | {"x-request-id": "c"}).status_code == 200


def test_user_requests_are_counted_and_the_pods_own_are_not() -> None:
    """Counts are of users' generation requests only."""
    client = Client()
    client.send("POST", "/v1/chat/completions")
    client.send("GET", "/v1/models")
    client.send("POST", "/v1/chat/completions", headers=INNER)
    counts = client.send("GET", "/_glm5/requests", headers=INNER).json()
    assert (counts["running"], counts["finished"]) == (0, 1)
    assert counts["sent"] >= 3


def test_a_request_counts_as_running_until_its_last_part() -> None:
    """Draining waits for streams, so a stream counts until it is sent whole."""
    seen = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        seen.append(gate.traffic.running)

    gate = Gate(app, GatePolicy(TOKEN))
    asyncio.run(gate(_scope(), _client({"type": "http.request"}), _Sent()))
    assert (seen, gate.traffic.running, gate.traffic.finished) == ([1], 0, 1)


def test_a_request_runs_only_when_its_body_is_whole() -> None:
    """What a client still sends is no work that the engine could have; it counts apart until its last part."""
    seen = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        for _ in range(3):
            seen.append((gate.traffic.uploading, gate.traffic.running))
            await receive()
        seen.append((gate.traffic.uploading, gate.traffic.running))

    gate = Gate(app, GatePolicy(TOKEN))
    part = {"type": "http.request", "body": b"x", "more_body": True}
    asyncio.run(gate(_scope(), _client(part, part, {**part, "more_body": False}), _Sent()))
    assert seen == [(1, 0), (1, 0), (1, 0), (0, 1)]
    assert (gate.traffic.uploading, gate.traffic.running, gate.traffic.finished) == (0, 0, 1)


def test_a_client_that_leaves_while_it_sends_never_ran() -> None:
    """A connection that breaks before the body is whole leaves no count behind."""
    seen = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append((await receive())["type"])
        seen.append((gate.traffic.uploading, gate.traffic.running))

    gate = Gate(app, GatePolicy(TOKEN))
    asyncio.run(gate(_scope(), _client({"type": "http.disconnect"}), _Sent()))
    assert seen == ["http.disconnect", (1, 0)]
    assert (gate.traffic.uploading, gate.traffic.running) == (0, 0)


def test_a_body_that_does_not_arrive_in_time_is_refused() -> None:
    """A client that stops sending gets 408 on a closed connection, is counted as refused and not as finished."""
    sent = _Sent()
    gate = Gate(_app(), GatePolicy(TOKEN, upload_seconds=0.05))
    part = {"type": "http.request", "body": b"{", "more_body": True}
    asyncio.run(gate(_scope(), _client(part), sent))
    assert (sent[0]["status"], dict(sent[0]["headers"])[b"connection"]) == (408, b"close")
    assert "no whole request within 0.05 s" in sent[1]["body"].decode()
    traffic = gate.traffic
    assert (traffic.refused["upload"], traffic.finished, traffic.uploading) == (1, 0, 0)


def test_an_answer_may_take_longer_than_an_upload() -> None:
    """The time of the upload is no limit for what follows it."""
    seen = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        with contextlib.suppress(TimeoutError):
            seen.append(await asyncio.wait_for(receive(), 0.2))

    gate = Gate(app, GatePolicy(TOKEN, upload_seconds=0.05))
    asyncio.run(gate(_scope(), _client({"type": "http.request"}), _Sent()))
    assert (seen, gate.traffic.refused["upload"]) == ([], 0)


def test_websockets_are_closed() -> None:
    """No websocket route is listed, so none is opened."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(Gate(_app(), GatePolicy(TOKEN))({"type": "websocket", "path": "/v1/realtime"}, None, send))  # type: ignore[arg-type]
    assert sent == [{"type": "websocket.close", "code": 1008}]


def test_policy_survives_the_environment() -> None:
    """The policy that the supervisor writes is the one the gate reads."""
    policy = GatePolicy("t", ("GET:/x",), 5, 7.5)
    assert GatePolicy.from_json(policy.to_json()) == policy
