"""An HTTP server that serves a folder, with or without ranges, and misbehaves exactly as told."""

from __future__ import annotations

import functools
import os
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from tests.support.glm5_command import PATIENCE_SECONDS

CHUNK = 1 << 18


@dataclass
class Fault:
    """What happens to the next `times` requests for bytes of files whose name ends with `name`.

    `skip` requests pass unharmed first. `after` bytes of the body are sent before the fault acts.
    """

    kind: str
    name: str = ".gguf"
    times: int = 1
    skip: int = 0
    after: int = 0
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    action: Callable[[], None] | None = None


@dataclass
class Hold:
    """An action that holds its request: `begun` is set when the request is there, and it goes on with `go_on`."""

    begun: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)

    def __call__(self) -> None:
        self.begun.set()
        self.go_on.wait(PATIENCE_SECONDS)


@dataclass(frozen=True)
class Seen:
    """A request as it came in."""

    method: str
    path: str
    headers: dict[str, str]


class FaultServer(ThreadingHTTPServer):
    """Serves `root`; `faults` is the script, `seen` what was asked, `sent_bytes` what was sent of files."""

    daemon_threads = True
    # many connections knock at once after a pause
    request_queue_size = 128

    def __init__(
        self,
        root: Path,
        *,
        ranges: bool = True,
        etags: bool = True,
        token: str | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_side=True)
        self.root, self.ranges, self.etags, self.token = root, ranges, etags, token
        self.faults: list[Fault] = []
        self.seen: list[Seen] = []
        self.sent_bytes = 0
        self.held = threading.Event()
        self.guard = threading.Lock()

    @property
    def url(self) -> str:
        scheme = "https" if isinstance(self.socket, ssl.SSLSocket) else "http"
        return f"{scheme}://127.0.0.1:{self.server_port}"

    def count(self, sent: int) -> None:
        """Add to `sent_bytes`."""
        with self.guard:
            self.sent_bytes += sent

    def next_fault(self, path: str) -> Fault | None:
        """The fault this request meets, if any."""
        with self.guard:
            for fault in self.faults:
                if fault.times > 0 and path.endswith(fault.name):
                    if fault.skip > 0:
                        fault.skip -= 1
                        return None
                    fault.times -= 1
                    return fault
        return None

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that hang up are the point of these tests."""

    def plan(self, path: str) -> Path | None:
        """The file behind a request path; other servers map it differently."""
        file = self.root / unquote(path).lstrip("/")
        return file if file.is_file() else None

    def answer_api(self, handler: _Handler, path: str) -> bool:
        """A hook for servers with an API; True if the request was answered."""
        return False

    def etag(self, file: Path) -> str:
        """The version of a file; other servers have other marks."""
        stat = file.stat()
        return f'"{stat.st_mtime_ns:x}-{stat.st_size:x}"'

    def allows(self, handler: _Handler) -> bool:
        # who changes the token and a client's copy of it at once holds the guard
        with self.guard:
            token = self.token
        return token is None or handler.headers.get("Authorization") == f"Bearer {token}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FaultServer

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""

    def do_GET(self) -> None:
        server, path = self.server, urlsplit(self.path).path
        with server.guard:
            server.seen.append(Seen(self.command, self.path, dict(self.headers.items())))
        if not server.allows(self):
            self.plain(401)
        elif not server.answer_api(self, path):
            file = server.plan(path)
            if file is None:
                self.plain(404)
            else:
                self.send_file(file, path)

    def do_HEAD(self) -> None:
        """Only where a server's API has it."""
        if not self.server.answer_api(self, urlsplit(self.path).path):
            self.plain(405)

    def plain(self, status: int, headers: dict[str, str] | None = None, body: bytes = b"") -> None:
        # a Date among the headers replaces our own
        self.send_response_only(status)
        if "Date" not in (headers or {}):
            self.send_header("Date", self.date_time_string())
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def cut_short(self, body: bytes) -> None:
        """Half of what the head promises, then the end of the connection."""
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2])
        self.close_connection = True

    def send_file(self, file: Path, path: str) -> None:
        server = self.server
        is_probe = self.headers.get("Range") == "bytes=0-0"
        fault = None if is_probe else server.next_fault(path)
        if fault is not None and fault.action is not None:
            fault.action()
        if fault is not None and fault.status:
            self.plain(fault.status, fault.headers)
            return
        stat = file.stat()
        start, end, status = 0, stat.st_size, 200
        etag = server.etag(file)
        kind = fault.kind if fault is not None else ""
        wanted = self.headers.get("Range")
        if_range = self.headers.get("If-Range")
        if wanted and server.ranges and kind != "whole" and (if_range in (None, etag) or not server.etags):
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            start, status = int(first), 206
            if start >= end:
                self.plain(416, {"Content-Range": f"bytes */{stat.st_size}"})
                return
            end = min(int(last) + 1, end) if last else end
            if fault is not None and kind == "part":
                end = min(end, start + fault.after)
        if kind == "drip head":
            self._drip_head()
            return
        self.send_response(status)
        length = end - start
        if kind == "wrong length":
            length -= 1000
        self.send_header("Content-Length", str(length))
        if status == 206:
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{stat.st_size}")
        if server.etags:
            self.send_header("ETag", f"W/{etag}" if kind == "weak" else etag)
        self.end_headers()
        self._send_body(file, start, end, fault)

    def _drip_head(self) -> None:
        """Header lines now and then until the client has had enough."""
        self.close_connection = True
        self._write(b"HTTP/1.1 200 OK\r\n")
        while not self.server.held.wait(0.05):
            self._write(b"X: x\r\n")

    def _send_body(self, file: Path, start: int, end: int, fault: Fault | None) -> None:
        kind = fault.kind if fault else ""
        stop = (
            min(end, start + fault.after)
            if fault and kind in ("reset", "truncate", "silence", "drip")
            else end
        )
        with open(file, "rb", buffering=0) as source:
            if kind == "flip":
                data = bytearray(os.pread(source.fileno(), end - start, start))
                data[min(fault.after if fault else 0, len(data) - 1)] ^= 1
                self._write(data)
                return
            self.wfile.flush()
            position = start
            while position < stop:
                sent = self._send(source.fileno(), position, min(CHUNK, stop - position))
                if not sent:
                    break
                position += sent
            if kind == "drip":
                # a byte now and then until the client has had enough
                while position < end and not self.server.held.wait(0.05):
                    self._write(os.pread(source.fileno(), 1, position))
                    position += 1
        if kind == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
        elif kind == "silence":
            self.server.held.wait(PATIENCE_SECONDS)
        if kind in ("reset", "truncate", "silence", "drip", "wrong length"):
            self.close_connection = True

    def _send(self, file: int, position: int, count: int) -> int:
        if isinstance(self.connection, ssl.SSLSocket):
            return self._counted(count, lambda: self.connection.send(os.pread(file, count, position)))
        return self._counted(count, lambda: os.sendfile(self.connection.fileno(), file, position, count))

    def _write(self, data: bytes | bytearray) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[self._counted(len(rest), functools.partial(self.connection.send, rest)) :]

    def _counted(self, planned: int, send: Callable[[], int]) -> int:
        """Count bytes before they go: whoever has them finds them counted, however late this thread goes on."""
        self.server.count(planned)
        sent = 0
        try:
            sent = send()
        finally:
            self.server.count(sent - planned)
        return sent


@contextmanager
def running(server: FaultServer) -> Iterator[FaultServer]:
    """Serve in a thread until the end of the block."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.held.set()
        server.shutdown()
        server.server_close()
        thread.join()
