"""The script of `helm test`, against servers that answer as told."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.support.chart import CHART

pytestmark = pytest.mark.chart


@contextmanager
def server(statuses: dict[str, int]) -> Iterator[str]:
    """Address of a server that answers 404 but for these paths."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(statuses.get(self.path, 404))
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nothing."""

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{http.server_port}"
    finally:
        http.shutdown()
        http.server_close()


@pytest.mark.parametrize(
    ("statuses", "said"),
    [
        ({}, ""),
        ({"/v1/embeddings": 405}, ""),
        ({"/docs": 200}, "status of /docs: 200; expected 404 or 405"),
        ({"/v1/embeddings": 401}, "status of /v1/embeddings: 401; expected 404 or 405"),
    ],
    ids=["gate", "router", "open", "answered"],
)
def test_closed_routes_are_those_that_nobody_serves(statuses: dict[str, int], said: str) -> None:
    """A route is closed if it is not found or, as the router says of a path it knows, not allowed, and only then."""
    with server(statuses) as url:
        done = subprocess.run(
            [sys.executable, str(CHART / "files" / "tests" / "check.py"), "closed-routes"],
            env={"API_URL": url, "MODEL": "m", "TIMEOUT_SECONDS": "10"},
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip

    assert done.stderr.strip() == said
    assert (done.returncode == 0) == (said == "")
