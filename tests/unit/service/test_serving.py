"""`glm5 serve` with a stand-in engine behind the real gate: probes, faults and draining from the outside."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.support.glm5_command import PATIENCE_SECONDS
from tests.support.serving import Serving, start_serving

# the limits at which something counts as hung are long, since a busy machine stands still for seconds; a test of one
# sets it
FAST = (
    "engine.profile=cpu",
    "preflight.enabled=false",
    "health.poll_seconds=0.05",
    "health.canary_idle_seconds=0.2",
    "health.canary_timeout_seconds=30",
    "health.canary_failures=2",
    "health.stall_seconds=600",
    "drain.endpoint_grace_seconds=0.3",
)
Start = Callable[..., Serving]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts `glm5 serve` with a stand-in engine that answers HTTP."""
    running: list[Serving] = []
    model = tmp_path / "good.gguf"
    model.write_text("good")

    def begin(*settings: str, **env: str) -> Serving:
        serving = start_serving(
            model, tmp_path / "run", *FAST, *settings, fake=True, FAKE_ENGINE="serve", **env
        )
        running.append(serving)
        return serving

    yield begin
    for serving in running:
        serving.stop()


def _fault(serving: Serving, name: str) -> None:
    (serving.run_dir / "fault").write_text(name)


def _stream(serving: Serving, count: int, result: list[object]) -> threading.Thread:
    """A streaming request in the background; its lines, or its error, end up in `result`."""

    def ask() -> None:
        try:
            with httpx.stream(
                "POST",
                f"{serving.api}/v1/chat/completions",
                json={"max_tokens": count},
                timeout=PATIENCE_SECONDS,
            ) as answer:
                result.extend(line for line in answer.iter_lines() if line)
        except httpx.HTTPError as error:
            result.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    serving.until(lambda: serving.status()["traffic"]["running"] == 1)
    return thread


def _held_stream(serving: Serving, count: int, result: list[object]) -> threading.Thread:
    """As `_stream`, but nothing comes until the fault is healed."""
    _fault(serving, "hang")
    return _stream(serving, count, result)


def _ask_for_nothing(serving: Serving) -> int:
    """The status of a request that even an engine that hangs answers."""
    url, body = f"{serving.api}/v1/chat/completions", {"max_tokens": 0}
    return httpx.post(url, json=body, timeout=PATIENCE_SECONDS).status_code


def _block(path: Path) -> None:
    """Put a folder where the supervisor writes a file, maybe at this moment."""
    while not path.is_dir():
        with contextlib.suppress(FileExistsError):
            path.unlink(missing_ok=True)
            path.mkdir()


def test_ready_after_one_token_from_the_expected_backend(start: Start) -> None:
    """Readiness follows one real token and the attestation; the phases on the way are recorded."""
    serving = start()
    serving.until_ready()
    assert [serving.probe(name)[0] for name in ("startupz", "readyz", "livez")] == [200, 200, 200]
    state = serving.status()
    assert state["canary"]["passed"] >= 1
    assert state["attested_backends"] == ["TORCH_MLA_SPARSE"]
    assert [span["phase"] for span in state["phases"]] == ["preflight", "starting", "loading", "warming"]
    serving.until(lambda: serving.engine_json()["phase"] == "ready")


@pytest.mark.parametrize(
    ("backend", "phase", "reason"),
    [
        ("FLASHMLA", "failed", "rank 0 runs attention backend FLASHMLA; expected TORCH_MLA_SPARSE"),
        ("", "warming", "no attention by TORCH_MLA_SPARSE attested yet by ranks 0"),
    ],
)
def test_never_ready_without_the_expected_backend(
    start: Start, backend: str, phase: str, reason: str
) -> None:
    """Tokens from another backend, or from one that nobody attests, do not make the engine ready, nor kill it."""
    serving = start(FAKE_BACKEND=backend)
    serving.until(lambda: serving.probe("readyz")[1].get("reason") == reason)
    assert [serving.probe(name)[0] for name in ("startupz", "readyz", "livez")] == [503, 503, 200]
    assert serving.status()["phase"] == phase


@pytest.mark.parametrize("fault", ["hang", "lie"])
def test_idle_engine_that_gives_no_token_is_found(start: Start, fault: str) -> None:
    """With nothing queued, canaries find a hang; the first failure costs readiness, the last liveness."""
    serving = start("health.canary_failures=3", "health.canary_timeout_seconds=1")
    serving.until_ready()
    _fault(serving, fault)
    seen: list[dict[str, Any]] = []

    def is_dead() -> bool:
        seen.append(serving.status())
        return not seen[-1]["live"]

    serving.until(is_dead)
    for state in seen:
        failures = state["canary"]["consecutive_failures"]
        assert (state["started"], state["ready"], state["live"]) == (True, failures == 0, failures < 3), state
    assert "canaries in a row gave no token" in seen[-1]["reason"]
    assert [serving.probe(name)[0] for name in ("startupz", "readyz", "livez")] == [200, 503, 503]


def test_hang_with_queued_work_is_found_and_may_heal(start: Start) -> None:
    """Queued work without a step costs readiness at half the limit and liveness at the limit, until steps return."""
    serving = start("health.canary_idle_seconds=60", "health.stall_seconds=12")
    serving.until_ready()
    result: list[object] = []
    _fault(serving, "hang")
    thread = _stream(serving, 3, result)
    serving.until(lambda: serving.probe("livez")[0] == 503)
    assert [span["phase"] for span in serving.status()["phases"][-2:]] == ["ready", "stalled"]
    assert "1 requests wait and no engine step was seen" in serving.probe("livez")[1]["reason"]
    _fault(serving, "")
    serving.until_ready()
    thread.join()
    assert result == ["data: 0", "data: 1", "data: 2"]


def test_hang_that_the_counters_do_not_show_is_found(start: Start) -> None:
    """A request that a hung engine never took is in no counter; it is found at the same limit."""
    serving = start("health.canary_idle_seconds=60", "health.stall_seconds=2")
    serving.until_ready()
    result: list[object] = []
    _fault(serving, "numb")
    thread = _stream(serving, 3, result)
    serving.until(lambda: serving.probe("livez")[0] == 503)
    assert "1 requests wait and no engine step was seen" in serving.probe("livez")[1]["reason"]
    _fault(serving, "")
    thread.join()


def _open(serving: Serving, body: dict[str, object], length: int | None = None) -> socket.socket:
    """A connection over which a chat request was sent, with a body that is said to be of `length` bytes."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", serving.port))
    data = json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {length or len(data)}\r\n\r\n"
    client.sendall(head.encode() + data)
    return client


def _stays_well(serving: Serving, seconds: float) -> None:
    """No look in so many seconds finds anything but a ready engine."""
    before, until = serving.status()["phases"], time.monotonic() + seconds
    while time.monotonic() < until:
        assert [serving.probe(name)[0] for name in ("readyz", "livez")] == [200, 200], serving.status()
    assert serving.status()["phases"] == before


def test_a_client_that_stops_sending_harms_nobody(start: Start) -> None:
    """One byte of a hundred is no work for the engine, so its silence is no hang; in the end the client gets 408."""
    serving = start("health.canary_idle_seconds=60", "health.stall_seconds=2", "api.upload_seconds=8")
    serving.until_ready()
    with contextlib.closing(_open(serving, {}, 100)) as client:
        serving.until(lambda: serving.gate()["uploading"] == 1)
        assert serving.status()["traffic"]["running"] == 0
        _stays_well(serving, 3)
        assert client.recv(4096).startswith(b"HTTP/1.1 408")
    assert serving.gate()["refused"]["upload"] == 1


def test_a_client_that_does_not_read_harms_nobody(start: Start) -> None:
    """An answer that waits for its client is a request that runs, and yet the engine has done with it."""
    serving = start("health.canary_idle_seconds=60", "health.stall_seconds=40")
    serving.until_ready()
    passed = serving.status()["canary"]["passed"]
    with contextlib.closing(_open(serving, {"max_tokens": 1, "burst": 64})):
        serving.until(lambda: serving.status()["traffic"]["running"] == 1)
        _stays_well(serving, 25)
        assert serving.gate()["running"] == 1
    assert serving.status()["canary"]["passed"] > passed


def test_dead_engine_behind_a_living_api_is_found(start: Start) -> None:
    """vLLM's own 503 is believed at once."""
    serving = start()
    serving.until_ready()
    _fault(serving, "dead")
    serving.until(lambda: serving.probe("livez")[0] == 503)


def test_unreadable_metrics_kill_nobody(start: Start) -> None:
    """Without counters the canary speaks for the engine, and the engine stays ready."""
    serving = start()
    serving.until_ready()
    _fault(serving, "blind")
    passed = serving.status()["canary"]["passed"]
    serving.until(lambda: serving.status()["canary"]["passed"] > passed + 2)
    assert [serving.probe(name)[0] for name in ("readyz", "livez")] == [200, 200]


def test_the_engine_shares_counters_in_an_empty_folder_of_its_own(start: Start, tmp_path: Path) -> None:
    """PROMETHEUS_MULTIPROC_DIR may name a folder that is not there, or one with an earlier process's counters."""
    ours = tmp_path / "run" / "prometheus"
    ours.mkdir(parents=True)
    (ours / "gauge_livesum_7.db").write_text("left by an earlier start")

    serving = start(PROMETHEUS_MULTIPROC_DIR=str(tmp_path / "nowhere"))
    serving.until_ready()
    told = psutil.Process(serving.status()["pid"]).environ()["PROMETHEUS_MULTIPROC_DIR"]

    assert told == str(ours)
    assert list(ours.iterdir()) == []


def test_drain_lets_a_stream_finish(start: Start) -> None:
    """On SIGTERM readiness fails first, new requests are refused after the grace, the stream ends whole, exit 0."""
    serving = start("health.canary_idle_seconds=600")
    serving.until_ready()
    (serving.run_dir / "end").touch()
    result: list[object] = []
    thread = _held_stream(serving, 60, result)
    serving.process.send_signal(signal.SIGTERM)
    serving.until(lambda: serving.probe("readyz")[0] == 503)
    assert serving.probe("livez")[0] == 200
    serving.until(lambda: _ask_for_nothing(serving) == 503)
    _fault(serving, "")
    thread.join()
    assert result == [f"data: {number}" for number in range(60)]
    assert serving.process.wait(PATIENCE_SECONDS) == 0
    outcome = serving.engine_json()["drain"]
    assert (outcome["aborted"], outcome["refused"]) == (0, 1)
    assert outcome["finished"] >= 1
    assert (serving.run_dir / "end").read_text().endswith("all requests finished\n")


def test_drain_aborts_and_counts_what_exceeds_the_limit(start: Start) -> None:
    """A request longer than the limit is aborted, counted, and the command still ends with 0."""
    serving = start(
        "drain.limit_seconds=5", "health.canary_idle_seconds=600", "engine.stop_timeout_seconds=5"
    )
    serving.until_ready()
    result: list[object] = []
    thread = _stream(serving, 10_000, result)
    serving.process.send_signal(signal.SIGTERM)
    assert serving.process.wait(PATIENCE_SECONDS) == 0
    thread.join()
    assert isinstance(result[-1], httpx.HTTPError)
    outcome = serving.engine_json()["drain"]
    assert (outcome["aborted"], outcome["reason"]) == (1, "the limit of 5 s was reached")


def test_a_full_disk_does_not_end_a_drain(start: Start) -> None:
    """Where neither engine.json nor drain.json can be written, the stream ends whole and its end is told."""
    serving = start("health.canary_idle_seconds=600")
    serving.until_ready()
    (serving.run_dir / "end").touch()
    result: list[object] = []
    thread = _held_stream(serving, 60, result)
    for name in ("engine.json", "drain.json"):
        _block(serving.run_dir / name)
    serving.process.send_signal(signal.SIGTERM)
    serving.until(lambda: serving.probe("readyz")[0] == 503)
    _fault(serving, "")
    assert serving.process.wait(PATIENCE_SECONDS) == 0
    thread.join()
    assert result == [f"data: {number}" for number in range(60)]
    assert (serving.run_dir / "end").read_text().endswith("all requests finished\n")
    assert "cannot write" in serving.log()


def test_a_state_that_could_not_be_written_is_written_later(start: Start) -> None:
    """engine.json catches up with the phase once there is room for it."""
    serving = start()
    serving.until_ready()
    path = serving.run_dir / "engine.json"
    _block(path)
    _fault(serving, "dead")
    serving.until(lambda: serving.probe("livez")[0] == 503)
    serving.until(lambda: "cannot write" in serving.log())
    path.rmdir()
    serving.until(lambda: path.is_file() and serving.engine_json()["phase"] == "failed")


def test_hung_engine_is_not_drained(start: Start) -> None:
    """Requests of an engine that is found hung cannot finish, so a stop does not wait for them."""
    serving = start("drain.limit_seconds=600", "health.canary_timeout_seconds=1")
    serving.until_ready()
    _fault(serving, "hang")
    serving.until(lambda: serving.probe("livez")[0] == 503)
    (serving.run_dir / "end").touch()
    serving.process.send_signal(signal.SIGTERM)
    assert serving.process.wait(PATIENCE_SECONDS) == 0
    assert serving.engine_json()["drain"] is None
    # Kubernetes has no other word on why it was restarted
    assert (serving.run_dir / "end").read_text().startswith("told to stop while failed: ")


def test_engine_that_lost_its_core_is_ended(start: Start) -> None:
    """A living API server in front of a dead core is not alive, and is killed if it does not end by itself."""
    serving = start("engine.stop_timeout_seconds=1")
    serving.until_ready()
    (serving.run_dir / "end").touch()
    os.kill(int((serving.run_dir / "core.pid").read_text()), signal.SIGKILL)
    assert serving.process.wait(PATIENCE_SECONDS) == 6
    assert "phase=failed reason='the engine lost EngineCore'" in serving.log()
    assert "the engine ended by itself: it lost EngineCore" in serving.log()
    assert (serving.run_dir / "end").read_text().startswith("the engine ended by itself: it lost EngineCore")


def test_a_failure_that_gets_another_cause_is_told(start: Start) -> None:
    """engine.json follows the condition also where the phase stays, since it is what is left of a pod that ended."""
    serving = start("engine.stop_timeout_seconds=600")
    serving.until_ready()
    _fault(serving, "lie")
    serving.until(lambda: (state := serving.engine_json())["condition"] == "no_token" and not state["live"])
    os.kill(int((serving.run_dir / "core.pid").read_text()), signal.SIGKILL)
    serving.until(lambda: serving.engine_json()["condition"] == "process_lost")
