"""A server that sends a byte now and then is as good as silent, wherever in its answer it does so."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from glm5_service.settings.staging import StagingSettings
from glm5_service.staging.reasons import Reason, Transient
from glm5_service.staging.records import RemoteFile
from glm5_service.staging.sources.http.client import Http, Target
from glm5_service.staging.sources.hub import HubSource
from glm5_service.staging.sources.s3 import S3Source
from tests.support.staging.raw_server import raw_server

STALL = 0.5
# far below the time-out of each read, far above it all together
DRIP = 0.05
SETTINGS = StagingSettings(stall_seconds=STALL, connect_seconds=STALL)
FILE = RemoteFile("m.gguf", 1 << 20, "")
HEAD = b"HTTP/1.1 200 OK\r\n"


@contextlib.contextmanager
def dripping(first: bytes, drip: bytes) -> Iterator[int]:
    """A port that answers with `first` at once and then drips, whatever is said to it."""
    listener, ended = socket.create_server(("127.0.0.1", 0)), threading.Event()

    def serve(client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            client.recv(65536)
            client.sendall(first)
            while not ended.wait(DRIP):
                client.sendall(drip)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        ended.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


@pytest.mark.parametrize(
    ("first", "drip"),
    [
        (b"", b"H"),
        (HEAD + b"X: ", b"x"),
        (HEAD, b"X: x\r\n"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    ],
    ids=["status", "header", "headers", "interim answers"],
)
def test_a_head_that_drips(first: bytes, drip: bytes) -> None:
    """A head counts as one wait, however many bytes it brings: the attempt is a stall, and is made again."""
    with dripping(first, drip) as port, pytest.raises(Transient) as caught:
        Http(SETTINGS).open_range(lambda _: Target(f"http://127.0.0.1:{port}/m.gguf"), FILE, 0, FILE.size)
    assert caught.value.reason is Reason.STALLED


def test_a_handshake_that_drips() -> None:
    """TLS as well: a record of 16 kB that never ends."""
    with dripping(b"\x16\x03\x03\x3f\xff", b"\x02") as port, pytest.raises(Transient) as caught:
        Http(SETTINGS).send("GET", Target(f"https://127.0.0.1:{port}/m.gguf"))
    assert caught.value.reason is Reason.STALLED


def test_a_proxy_that_drips() -> None:
    """And the way through a proxy."""
    with dripping(b"HTTP/1.1 200 OK\r\n", b"X: x\r\n") as port:
        settings = StagingSettings.model_validate(
            {"stall_seconds": STALL, "http": {"proxy": f"http://127.0.0.1:{port}"}}
        )
        with pytest.raises(Transient) as caught:
            Http(settings).send("GET", Target("https://models.invalid/m.gguf"))
    assert caught.value.reason is Reason.STALLED


@pytest.mark.parametrize("length", [b"Content-Length: 1000000\r\n", b"", b"Transfer-Encoding: chunked\r\n"])
def test_a_list_that_drips(length: bytes) -> None:
    """A short answer that comes too slowly is no answer."""
    with dripping(HEAD + length + b"\r\n", b"1") as port:
        settings = StagingSettings.model_validate(
            {"stall_seconds": STALL, "hub": {"endpoint": f"http://127.0.0.1:{port}"}}
        )
        with pytest.raises(Transient) as caught:
            HubSource("hf://o/r", settings).entries()
    assert caught.value.reason is Reason.STALLED


def test_the_size_of_a_chunk_that_drips() -> None:
    """A line before a chunk is not a byte of the file."""
    with dripping(HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"0") as port:
        stream = Http(SETTINGS).open_range(
            lambda _: Target(f"http://127.0.0.1:{port}/m.gguf"), FILE, 0, FILE.size
        )
        with pytest.raises(Transient) as caught:
            stream.wait(1)
        stream.close(finished=False)
    assert caught.value.reason is Reason.STALLED


def test_the_body_of_a_refusal_that_drips(tmp_path: Path) -> None:
    """A refusal is told at once: its body is not waited for."""
    with (
        dripping(b"HTTP/1.1 503 x\r\nContent-Length: 60000\r\n\r\n", b"x") as port,
        pytest.raises(Transient) as caught,
    ):
        Http(SETTINGS).send("GET", Target(f"http://127.0.0.1:{port}/m.gguf"))
    assert caught.value.reason is Reason.UNREACHABLE


@pytest.mark.parametrize("length", [0, 1, 60_000])
def test_a_refusal_leaves_its_connection_fit(tmp_path: Path, length: int) -> None:
    """The next request goes over the same connection, also where nothing was to be read and the answer is still held."""
    ports: set[int] = set()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            ports.add(self.client_address[1])
            self.send_response(429)
            self.send_header("Content-Length", str(length))
            self.end_headers()
            self.wfile.write(bytes(length))

        def log_message(self, *_: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    http, held = Http(StagingSettings()), list[Transient]()
    try:
        for _ in range(3):
            with pytest.raises(Transient) as caught:
                http.send("GET", Target(f"http://127.0.0.1:{server.server_port}/m.gguf"))
            assert caught.value.reason is Reason.THROTTLED
            held.append(caught.value)
    finally:
        server.shutdown()
        server.server_close()
    assert len(ports) == 1


def test_a_slow_head_is_no_dripping_one() -> None:
    """What comes within the limit is taken, and the connection serves the next request."""
    body = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    with raw_server(lambda _: body, drip_seconds=0.002) as url:
        http = Http(StagingSettings(stall_seconds=30))
        assert http.read_all(http.send("GET", Target(url)), "it") == b"ok"


@pytest.mark.parametrize("first", [b"", HEAD + b"Content-Length: 1000000\r\n\r\n"], ids=["head", "body"])
def test_an_s3_list_that_drips(first: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The S3 client waits no longer than our own."""
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with dripping(first, b"1") as port:
        settings = StagingSettings.model_validate(
            {"stall_seconds": STALL, "s3": {"endpoint": f"http://127.0.0.1:{port}", "anonymous": True}}
        )
        with pytest.raises(Transient) as caught:
            S3Source("s3://bucket/m", settings).entries()
    assert caught.value.reason is Reason.STALLED
