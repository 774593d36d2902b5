"""The servers of probes and of metrics have the limits of connections, as the API has."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from glm5_service.api.policy import SMALL_SERVER
from glm5_service.supervise.health_process import HealthServer
from tests.support.glm5_command import PATIENCE_SECONDS, start_glm5
from tests.support.serving import free_port
from tests.unit.service.test_connections import answer, asks
from tests.unit.service.test_openapi import STATES


@pytest.fixture(params=["health server", "sidecar"])
def port(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[int]:
    """Port of a running one."""
    found = free_port()
    if request.param == "health server":
        server = HealthServer(STATES["ready"], "127.0.0.1", found, PATIENCE_SECONDS)
        server.wait_until_listening()
        yield found
        server.stop()
        return
    process = start_glm5(
        "sidecar",
        "--run-dir",
        tmp_path,
        "--port",
        found,
        "--set",
        "sidecar.host=127.0.0.1",
        log=tmp_path / "log",
    )
    yield found
    process.kill()
    process.wait()


def _connect(port: int) -> socket.socket:
    for _ in range(600):
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS)
        except ConnectionRefusedError:
            time.sleep(0.1)  # until it listens
    raise AssertionError("does not listen")


def test_heads_are_bounded_and_timed(port: int) -> None:
    """A head too large is refused with 431, half a head is closed in time, and honest requests are answered."""
    with _connect(port) as large, _connect(port) as half:
        half.sendall(b"GET / HTTP/1.1\r\n")
        large.sendall(b"GET / HTTP/1.1\r\na: " + b"x" * (SMALL_SERVER.head_bytes + 100))
        assert answer(large).startswith(b"HTTP/1.1 431")
        assert asks(port) == 404
        assert answer(half).startswith(b"HTTP/1.1 408")
