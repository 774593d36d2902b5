"""The API's gate: what passes, what is refused, what is counted."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
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
        ],
        # as vLLM adds it
        middleware=[Middleware(CORSMiddleware, allow_origins=["https://a.example"], allow_methods=["*"])],
    )


class Client:
    """Speaks to the gate in this process."""

    def __init__(self, **policy: Any) -> None:
        self._app = _app()
        self.gate = Gate(self._app, GatePolicy(TOKEN, **policy))

    async def _outside(self, scope: Any, receive: Any, send: Any) -> None:
        """As Starlette calls its middleware."""
        await self.gate({**scope, "app": self._app}, receive, send)

    def send(self, method: str, path: str, **kwargs: Any) -> httpx.Response:
        async def call() -> httpx.Response:
            transport = httpx.ASGITransport(app=self._outside)  # type: ignore[arg-type]
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
            yield b" " * 100

    client = Client(max_body_bytes=1000)
    answer = client.send("POST", "/v1/completions", content=parts() if chunked else b" " * 1100)
    assert (answer.status_code, answer.json()["error"]["message"]) == (
        413,
        "request body is larger than 1000 bytes",
    )
    assert client.send("POST", "/v1/completions", content=b" " * 998 + b"{}").json()["bytes"] == 1000
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
        seen.append((gate.traffic.uploading, gate.traffic.running))
        seen.append((await receive())["body"])
        seen.append((gate.traffic.uploading, gate.traffic.running))

    gate = Gate(app, GatePolicy(TOKEN))
    part = {"type": "http.request", "more_body": True}
    last = {"type": "http.request", "body": b"{}", "more_body": False}
    asyncio.run(gate(_scope(), _client({**part, "body": b" "}, {**part, "body": b" "}, last), _Sent()))
    assert seen == [(1, 0), b"  {}", (0, 1)]
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
    gate = Gate(_app(), GatePolicy(TOKEN, upload_seconds=0.05, drain_seconds=0.05))
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


@pytest.mark.parametrize("length", ["1000 ", " 1000", "\t1000 \t", "0" * 5000 + "1000"])
def test_legal_lengths_pass(length: str) -> None:
    """Blanks around a Content-Length and leading zeros are legal, and thousands of digits raise nothing."""
    client = Client(max_body_bytes=1000)
    answer = client.send(
        "POST", "/v1/completions", content=b" " * 998 + b"{}", headers={"Content-Length": length}
    )
    assert (answer.status_code, answer.json()["bytes"]) == (200, 1000)


@pytest.mark.parametrize(
    ("length", "status"),
    [("9" * 5000, 413), ("1001", 413), ("+5", 400), ("-5", 400), ("5, 5", 400), ("", 400), ("\u00b2", 400)],
)
def test_other_lengths_are_refused(length: str, status: int) -> None:
    """What is no whole number is named; a number beyond the limit is too large, however long it is."""
    client = Client(max_body_bytes=1000)
    answer = client.send(
        "POST", "/v1/completions", content=b"{}", headers=[("Content-Length", length.encode("latin-1"))]
    )
    assert answer.status_code == status


def test_two_lengths_are_refused() -> None:
    """Two servers could read such a request differently."""
    lengths = [("Content-Length", "5"), ("Content-Length", "6")]
    assert Client().send("POST", "/v1/completions", content=b"{}", headers=lengths).status_code == 400
    both = [("Content-Length", "5"), ("Transfer-Encoding", "chunked")]
    assert Client().send("POST", "/v1/completions", content=b"{}", headers=both).status_code == 400


@pytest.mark.parametrize(
    ("path", "policy", "status"),
    [
        ("/nowhere", {}, 404),
        ("/v1/completions", {"max_body_bytes": 1}, 413),
        ("/v1/completions", {"max_bodies_bytes": 0, "small_body_bytes": 1}, 503),
    ],
)
def test_refusals_carry_the_cors_headers_of_the_application(
    path: str, policy: dict[str, Any], status: int
) -> None:
    """A browser may read a refusal of the gate where it may read an answer of vLLM, and no other."""
    client = Client(**policy)
    allowed, other = {"Origin": "https://a.example"}, {"Origin": "https://b.example"}
    answer = client.send("POST", path, content=b"{}", headers=allowed)
    assert (answer.status_code, answer.headers.get("access-control-allow-origin")) == (
        status,
        allowed["Origin"],
    )
    answer = client.send("POST", path, content=b"{}", headers=other)
    assert (answer.status_code, answer.headers.get("access-control-allow-origin")) == (status, None)
    answer = client.send("POST", path, content=b"{}")
    assert (answer.status_code, answer.headers.get("access-control-allow-origin")) == (status, None)


def test_a_preflight_of_a_route_that_is_not_there_is_refused() -> None:
    """CORS on refusals opens no route."""
    headers = {"Origin": "https://a.example", "Access-Control-Request-Method": "POST"}
    assert Client().send("OPTIONS", "/metrics", headers=headers).status_code == 404


def test_a_refused_body_is_read_on_for_a_while() -> None:
    """The rest of a body is taken off the connection before it closes, so that its client can read the refusal."""
    sent = _Sent()
    part = {"type": "http.request", "body": b" " * 100, "more_body": True}
    left = [part] * 30 + [{**part, "more_body": False}]

    async def receive() -> Any:
        return left.pop(0)

    gate = Gate(_app(), GatePolicy(TOKEN, max_body_bytes=1000, drain_bytes=1500))
    asyncio.run(gate(_scope(), receive, sent))
    assert sent[0]["status"] == 413
    assert len(left) == 31 - 11 - 15
    assert [message.get("more_body", False) for message in sent[1:]] == [True, False]


def test_bodies_held_at_once_are_bounded() -> None:
    """At the limit of all bodies together a large one is refused and a small one passes; an end frees its bytes."""
    client = Client(max_bodies_bytes=100, small_body_bytes=10)
    body = b" " * 90 + b"{}"
    client.gate.traffic.held_bytes = 50
    assert client.send("POST", "/v1/completions", content=body).status_code == 503
    assert client.send("POST", "/v1/completions", content=b"{}").status_code == 200
    assert client.gate.traffic.held_bytes == 50
    client.gate.traffic.held_bytes = 0
    assert client.send("POST", "/v1/completions", content=body).status_code == 200
    assert (client.gate.traffic.held_bytes, client.gate.traffic.refused["busy"]) == (0, 1)


def test_a_body_is_read_only_when_it_is_asked_for() -> None:
    """An application that refuses by the head, as for a wrong key, has no body held for it."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 401, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def receive() -> Any:
        raise AssertionError("read")

    sent = _Sent()
    asyncio.run(Gate(app, GatePolicy(TOKEN))(_scope(), receive, sent))
    assert sent[0]["status"] == 401


@pytest.mark.parametrize("route", ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/tokenize"])
@pytest.mark.parametrize(("body", "status"), [(b'{"a": [' + b"{}," * 200_000 + b"{}]}", 413), (b"{", 400)])
def test_every_open_route_has_the_same_rules(route: str, body: bytes, status: int) -> None:
    """A route that a setting opens is guarded as those that are open by default."""
    client = Client(routes=(*PUBLIC_ROUTES, "POST:/v1/responses", "POST:/tokenize"))
    client.gate._app = _reads
    answer = client.send("POST", route, content=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, status)


async def _reads(scope: Any, receive: Any, send: Any) -> None:
    message = await receive()
    if message["type"] == "http.request":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})


@pytest.mark.parametrize("content_type", ["multipart/form-data; boundary=x", "text/plain", ""])
def test_no_content_type_goes_around_the_rules(content_type: str) -> None:
    """A body is judged by what it is; forms pass on routes that a setting opens."""
    client = Client(routes=(*PUBLIC_ROUTES, "POST:/v1/audio/transcriptions"))
    client.gate._app = _reads
    headers = {"Content-Type": content_type}
    assert client.send("POST", "/v1/completions", content=b"--x", headers=headers).status_code == 400
    if content_type.startswith("multipart/"):
        assert (
            client.send("POST", "/v1/audio/transcriptions", content=b"--x", headers=headers).status_code
            == 200
        )
