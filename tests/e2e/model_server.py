"""Serves a folder of files with ranges and ETags, and counts what it sent: `model_server.py FOLDER PORT`.

GET /sent answers {file: bytes sent}, GET /pace/NAME changes how fast it sends. SHA256SUMS is made from the files.
Standard library only; runs in the service image.
"""

from __future__ import annotations

import hashlib
import json
import re
import socket
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock

FOLDER = Path(sys.argv[1])
FILES = {
    path.name: path.read_bytes() for path in sorted(FOLDER.iterdir()) if path.suffix in (".gguf", ".json")
}
SUMS = "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in FILES.items()).encode()
CHUNK = 1 << 16
# small and slow, so that what is counted as sent is not megabytes that wait in this kernel or the reader's when it dies:
# a reader's receive buffer grows as it likes, unless bytes come no faster than it takes them
SEND_BUFFER_BYTES = 1 << 16
SO_MAX_PACING_RATE = 47  # of Linux, which the socket module has no name for
# bytes a second of each connection; two that walk are what the steps limit their stagers to, and one that crawls is still
# no stall to a stager
PACES = {"walk": 100_000, "crawl": 10_000}


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    sent: dict[str, int] = {}  # noqa: RUF012
    lock = Lock()
    pace = "walk"

    def setup(self) -> None:
        self.request.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        super().setup()

    def do_HEAD(self) -> None:
        self.answer(with_body=False)

    def do_GET(self) -> None:
        self.answer(with_body=True)

    def answer(self, *, with_body: bool) -> None:
        name = self.path.split("?")[0].rpartition("/")[2]
        if self.path == "/sent":
            self.respond(200, json.dumps(self.sent).encode(), {})
        elif self.path.startswith("/pace/") and name in PACES:
            Handler.pace = name
            self.respond(200, name.encode(), {})
        elif name == "":
            links = "".join(f'<a href="{file}">{file}</a>\n' for file in [*FILES, "SHA256SUMS"])
            self.respond(200, links.encode(), {"Content-Type": "text/html"}, with_body)
        elif name == "SHA256SUMS":
            self.respond(200, SUMS, {}, with_body)
        elif name in FILES:
            self.send_file(name, with_body)
        else:
            self.respond(404, b"", {})

    def send_file(self, name: str, with_body: bool) -> None:
        data = FILES[name]
        headers = {"ETag": f'"{hashlib.sha256(data).hexdigest()[:16]}"', "Accept-Ranges": "bytes"}
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if not match:
            self.respond(200, data, headers, with_body, name)
            return
        start, end = int(match[1]), int(match[2] or len(data) - 1)
        headers["Content-Range"] = f"bytes {start}-{end}/{len(data)}"
        self.respond(206, data[start : end + 1], headers, with_body, name)

    def respond(
        self, status: int, body: bytes, headers: dict[str, str], with_body: bool = True, counted: str = ""
    ) -> None:
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(body))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        for start in range(0, len(body) if with_body else 0, CHUNK):
            piece = body[start : start + CHUNK]
            self.request.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, PACES[self.pace])
            self.wfile.write(piece)
            if counted:
                with self.lock:
                    self.sent[counted] = self.sent.get(counted, 0) + len(piece)


ThreadingHTTPServer(("0.0.0.0", int(sys.argv[2])), Handler).serve_forever()
