"""The health server keeps what its OpenAPI promises, for requests nobody thought of."""

from __future__ import annotations

import socket
import time
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
import schemathesis
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings

from glm5_service.contracts.engine import EngineState
from glm5_service.errors import EngineError
from glm5_service.supervise.health_process import HealthServer
from glm5_service.supervise.health_server import Board, application
from tests.support.glm5_command import PATIENCE_SECONDS
from tests.support.serving import free_port

STATES = {
    "ready": EngineState(phase="ready", since=datetime.now(UTC), reason="idle", started=True, ready=True),
    "failed": EngineState(
        phase="failed", since=datetime.now(UTC), reason="gone", live=False, remedy="Restart."
    ),
}


@pytest.mark.parametrize("state", STATES.values(), ids=STATES)
@pytest.mark.parametrize("path", ["/startupz", "/readyz", "/livez", "/status"])
def test_answers_match_the_openapi(state: EngineState, path: str) -> None:
    """Every answer has a documented status, media type and body, whatever the request."""
    app = application(Board(state, 60, 1000, clock=lambda: 1000))
    operation = schemathesis.openapi.from_asgi("/openapi.json", app)[path]["GET"]
    # 503 is how a probe says no, and the schema documents it
    excluded = [schemathesis.checks.not_a_server_error] if path != "/status" else []

    @settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy())
    def check(case: Any) -> None:
        case.call_and_validate(excluded_checks=excluded)

    check()


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_probes_only_answer(method: str) -> None:
    """The health server can be asked and never told."""
    client = TestClient(application(Board(STATES["ready"], 60, 1000, clock=lambda: 1000)))
    assert {
        client.request(method, f"/{name}").status_code for name in ("startupz", "readyz", "livez", "status")
    } == {405}


def test_probes_follow_the_state_and_a_stale_board_fails_them_all() -> None:
    """Probes answer from the last verdict, and a supervisor that stopped looking vouches for nothing."""
    board = Board(STATES["ready"], 60, 1000, clock=lambda: now)
    now = 1000.0
    client = TestClient(application(board))
    assert [client.get(f"/{name}").status_code for name in ("startupz", "readyz", "livez")] == [200, 200, 200]
    board.post(STATES["failed"])
    assert [client.get(f"/{name}").status_code for name in ("startupz", "readyz", "livez")] == [503, 503, 503]
    assert client.get("/livez").json()["remedy"] == "Restart."
    board.post(STATES["ready"])
    now += 61
    answer = client.get("/livez")
    assert (answer.status_code, "the supervisor has not looked for 61 s" in answer.text) == (503, True)
    assert [client.get(f"/{name}").status_code for name in ("startupz", "readyz")] == [503, 503]


def test_a_stale_state_is_neither_ready_nor_alive() -> None:
    """/status does not contradict the probes; what was known besides stays, such as that the engine had started."""
    board = Board(STATES["ready"], 60, 1000, clock=lambda: now)
    now = 1000.0
    client = TestClient(application(board))
    assert EngineState.model_validate(client.get("/status").json()) == STATES["ready"]
    now += 61
    state = EngineState.model_validate(client.get("/status").json())
    assert (state.ready, state.live, state.reason) == (False, False, "the supervisor has not looked for 61 s")
    assert (state.started, state.phase, state.since) == (True, "ready", STATES["ready"].since)


def test_a_port_that_is_taken_is_an_error() -> None:
    """An engine whose probes nobody can ask is not started."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        server = HealthServer(STATES["ready"], "127.0.0.1", port, 60)
        with pytest.raises(EngineError, match=f"the health server cannot listen: 127.0.0.1:{port}"):
            server.wait_until_listening()
        server.stop()


def test_states_reach_the_probes_and_the_server_ends_with_its_supervisor() -> None:
    """What is posted is what is answered, and nobody vouches for an engine that nobody watches."""
    server = HealthServer(STATES["failed"], "127.0.0.1", port := free_port(), 2 * PATIENCE_SECONDS)
    server.wait_until_listening()
    url = f"http://127.0.0.1:{port}/livez"
    assert httpx.get(url, timeout=PATIENCE_SECONDS).status_code == 503
    server.post(STATES["ready"])
    deadline = time.monotonic() + PATIENCE_SECONDS
    while httpx.get(url, timeout=PATIENCE_SECONDS).status_code != 200:
        assert time.monotonic() < deadline
    server._states.close()
    assert server._process.wait(PATIENCE_SECONDS) == 0
    server.stop()
