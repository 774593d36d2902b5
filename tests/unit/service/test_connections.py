"""Limits of connections, tried on a real uvicorn over sockets: every server of this project uses this protocol."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import uvicorn

from glm5_service.api.connections import limited
from glm5_service.api.policy import ConnectionLimits
from tests.support.glm5_command import PATIENCE_SECONDS

HEAD = b"GET / HTTP/1.1\r\nhost: x\r\n"


async def _echo(scope: Any, receive: Any, send: Any) -> None:
    size = 0
    while True:
        message = await receive()
        size += len(message.get("body", b""))
        if not message.get("more_body", False):
            break
    body = str(size).encode()
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@contextlib.contextmanager
def server(limits: ConnectionLimits) -> Iterator[int]:
    """A server with these limits; its port."""
    config = uvicorn.Config(_echo, http=limited(limits), ws="none", log_level="critical", lifespan="off")
    running = uvicorn.Server(config)
    listening = socket.create_server(("127.0.0.1", 0), backlog=512)
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield int(listening.getsockname()[1])
    finally:
        running.should_exit = True
        running.force_exit = True
        thread.join()
        listening.close()


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS)


def answer(connection: socket.socket) -> bytes:
    """Everything until the server closes; a reset ends it too."""
    parts = []
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(65536):
            parts.append(part)
    return b"".join(parts)


def asks(port: int) -> int:
    """Status of an honest request."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_SECONDS)
    try:
        connection.request("GET", "/")
        return connection.getresponse().status
    finally:
        connection.close()


def _drip(connection: socket.socket, part: Callable[[int], bytes], most: int) -> bytes:
    """Send parts until the server closes; what it said."""
    connection.sendall(HEAD)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        for number in range(most):
            connection.sendall(part(number))
    return answer(connection)


@pytest.mark.parametrize(
    "part",
    [lambda n: b"x" * 1000, lambda n: b"a%d: %s\r\n" % (n, b"y" * 1000), lambda n: b"a: b\r\n"],
    ids=["one header without end", "long headers", "many headers"],
)
def test_heads_are_bounded(part: Callable[[int], bytes]) -> None:
    """A head is refused at its limit of bytes or lines, whether or not a line ends."""
    with server(ConnectionLimits(head_bytes=8000, head_count=20)) as port:
        with connect(port) as connection:
            said = _drip(connection, part, 100_000)
        assert said == b"" or b"431" in said.split(b"\r\n")[0]
        assert asks(port) == 200


def test_a_head_within_the_limits_passes() -> None:
    """Limits are on what is beyond them."""
    with server(ConnectionLimits(head_bytes=8000, head_count=20)) as port, connect(port) as connection:
        lines = b"".join(b"a%d: %s\r\n" % (number, b"y" * 300) for number in range(18))
        connection.sendall(HEAD + lines + b"connection: close\r\n\r\n")
        assert answer(connection).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    "chunk", [b"1;%s\r\nx\r\n" % (b"e" * 500), b"1\r\nx\r\n"], ids=["extensions", "one byte each"]
)
def test_what_frames_a_body_is_bounded(chunk: bytes) -> None:
    """Extensions of chunks and trailers count as a head does; a body in sane chunks passes whatever its size."""
    start = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    with server(ConnectionLimits(head_bytes=8000)) as port:
        with connect(port) as connection:
            connection.sendall(start)
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                for _ in range(20_000):
                    connection.sendall(chunk)
                connection.sendall(b"0\r\n\r\n")
            assert not answer(connection).startswith(b"HTTP/1.1 200")
        with connect(port) as connection:
            connection.sendall(start + b"400\r\n" + b"x" * 1024 + b"\r\n")
            connection.sendall((b"400\r\n" + b"x" * 1024 + b"\r\n") * 999)
            connection.sendall(b"0\r\n\r\n")
            assert connection.recv(1000).endswith(b"1024000")


@pytest.mark.parametrize("sent", [b"", HEAD, b"\r\n"], ids=["nothing", "half a head", "an empty line"])
def test_half_sent_heads_are_closed_in_time(sent: bytes) -> None:
    """A connection has so long for its first head, whatever it has sent of it."""
    with server(ConnectionLimits(head_seconds=0.2)) as port, connect(port) as connection:
        connection.sendall(sent)
        said = answer(connection)
        assert said.startswith(b"HTTP/1.1 408") if sent == HEAD else said == b""


def test_idle_connections_are_closed_in_time() -> None:
    """After an answer a connection waits so long for the next request; empty lines don't lengthen it."""
    with server(ConnectionLimits(head_seconds=0.2, idle_seconds=0.2)) as port, connect(port) as connection:
        connection.sendall(HEAD + b"\r\n")
        assert answer(connection).startswith(b"HTTP/1.1 200")
        with connect(port) as other:
            other.sendall(HEAD + b"\r\n\r\n")
            assert answer(other).startswith(b"HTTP/1.1 200")


def test_a_slow_body_is_not_the_heads_business() -> None:
    """The time of a head ends with it: what follows may take longer."""
    with server(ConnectionLimits(head_seconds=0.2)) as port, connect(port) as connection:
        connection.sendall(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\nx")
        connection.settimeout(0.5)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        connection.sendall(b"x")
        assert connection.recv(1000).startswith(b"HTTP/1.1 200")


def test_many_half_sent_heads_starve_nobody() -> None:
    """Where connections are short, those that wait for a head go, the longest first; honest requests pass."""
    with server(ConnectionLimits(connections=20, head_seconds=60)) as port, contextlib.ExitStack() as stack:
        slow = [stack.enter_context(connect(port)) for _ in range(60)]
        for connection in slow:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.sendall(HEAD)
        assert [asks(port) for _ in range(5)] == [200] * 5
        assert answer(slow[0]) == b""


@pytest.mark.parametrize(
    "length",
    ["+5", "-5", "5, 5", "0x5", "9" * 5000, "5\r\ncontent-length: 6", "5\r\ntransfer-encoding: chunked"],
    ids=["plus", "minus", "list", "hex", "5,000 digits", "two of them", "with Transfer-Encoding"],
)
def test_no_body_of_doubtful_length_is_read(length: str) -> None:
    """Requests whose length two servers could read differently are refused before an application sees them."""
    with server(ConnectionLimits()) as port, connect(port) as connection:
        connection.sendall(
            b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: " + length.encode() + b"\r\n\r\nhello"
        )
        assert answer(connection).startswith(b"HTTP/1.1 400")
