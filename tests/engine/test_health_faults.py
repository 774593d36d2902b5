"""Faults in the processes of the real engine: which probe says what, after how long. Generates the table of faults."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from glm5_service.rundir import write_text
from glm5_service.watch.vllm_api import parse_steps
from tests.support.glm5_command import PATIENCE_SECONDS
from tests.support.results import FAULT_PAGE, RESULTS, fault_table, record
from tests.support.serving import START_SECONDS, Serving, start_serving, suspended

pytestmark = pytest.mark.engine

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "demo_model"
INJECTION = ROOT / "tests" / "support" / "fault_injection"
# far below the defaults, so that every fault fits into seconds, and above the pauses of a busy machine
STALL_SECONDS, IDLE_SECONDS, CANARY_SECONDS, FAILURES = 20.0, 1.0, 10.0, 2
STOP_SECONDS = 30.0
SETTINGS = (
    f"health.stall_seconds={STALL_SECONDS}",
    f"health.canary_idle_seconds={IDLE_SECONDS}",
    f"health.canary_timeout_seconds={CANARY_SECONDS}",
    f"health.canary_failures={FAILURES}",
    "health.poll_seconds=0.5",
    "drain.endpoint_grace_seconds=0",
    "drain.limit_seconds=0",
    f"engine.stop_timeout_seconds={STOP_SECONDS}",
    "engine.max_model_len=1024",
    "engine.extra_args=--middleware faulty_metrics.FaultyMetrics",
)
# between canaries after a failure, and what a loaded test machine adds to any wait
RETRY_SECONDS, SLACK_SECONDS = 5.0, 60.0
# a compilation longer than every other limit; the recorded run takes the 90 s that were seen in the field
COMPILE_SECONDS = float(os.environ.get("COMPILE_STALL_SECONDS", STALL_SECONDS * 1.5))


@dataclass
class Faults:
    """One engine for many faults, started again after a fault that it does not survive."""

    folder: Path
    serving: Serving | None = None
    rows: list[dict[str, Any]] = field(default_factory=list)
    starts: int = 0

    def engine(self) -> Serving:
        """A ready engine."""
        if self.serving is None or self.serving.process.poll() is not None:
            self.starts += 1
            run_dir = self.folder / f"run-{self.starts}"
            self.serving = start_serving(MODEL, run_dir, *SETTINGS, PYTHONPATH=str(INJECTION))
            self.serving.until_ready()
        return self.serving

    def note(self, fault: str, expected: str, **seconds: float | None) -> None:
        """One row of the table."""
        rounded = {name: None if value is None else round(value, 1) for name, value in seconds.items()}
        self.rows.append({"fault": fault, "expected": expected, **rounded})


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Faults]:
    """The engine and the rows; the table is kept at the end."""
    found = Faults(tmp_path_factory.mktemp("faults"))
    yield found
    if found.serving:
        found.serving.stop()
    limits = {
        "stall_seconds": STALL_SECONDS,
        "canary_idle_seconds": IDLE_SECONDS,
        "canary_timeout_seconds": CANARY_SECONDS,
        "canary_failures": FAILURES,
        "compile_seconds": COMPILE_SECONDS,
    }
    if record("health-faults", {"limits": limits, "faults": found.rows}):
        FAULT_PAGE.write_text(fault_table(json.loads((RESULTS / "health-faults.json").read_text())))


def _asks(serving: Serving) -> Callable[[], list[bytes]]:
    """A streaming request in the background; call the result to wait for its lines."""
    lines: list[bytes] = []
    url = f"{serving.api}/v1/completions"
    body = {"model": "glm-5", "prompt": "hello", "max_tokens": 40, "stream": True, "ignore_eos": True}

    def ask() -> None:
        with httpx.stream("POST", url, json=body, timeout=START_SECONDS) as answer:
            lines.extend(line.encode() for line in answer.iter_lines() if line)

    thread = threading.Thread(target=ask)
    thread.start()

    def wait() -> list[bytes]:
        thread.join()
        return lines

    return wait


def _first(serving: Serving, probe: str, status: int) -> float:
    return serving.until(lambda: serving.probe(probe)[0] == status)


def test_hang_of_an_idle_core_is_found_and_may_heal(faults: Faults) -> None:
    """A stopped engine core without work fails readiness at the first canary, liveness at the last, then recovers."""
    serving = faults.engine()
    with suspended(serving.engine_process("EngineCore")):
        unready = _first(serving, "readyz", 503)
        dead = unready + _first(serving, "livez", 503)
        reason = serving.probe("livez")[1]["reason"]
    said = re.match(rf"(\d+) canaries in a row gave no token: no answer in {CANARY_SECONDS:g} s", reason)
    assert said, reason
    assert int(said[1]) >= FAILURES
    healed = serving.until_ready()
    faults.note(
        "engine core hangs (SIGSTOP), idle", "found by the canary", unready=unready, dead=dead, healed=healed
    )
    assert dead <= IDLE_SECONDS + FAILURES * (CANARY_SECONDS + RETRY_SECONDS) + SLACK_SECONDS


@pytest.mark.parametrize("title", ["EngineCore", "Worker"])
def test_hang_with_queued_work_is_found_and_may_heal(faults: Faults, title: str) -> None:
    """A stopped process with work queued fails readiness at half the stall limit, liveness at the limit."""
    serving = faults.engine()
    with suspended(serving.engine_process(title)):
        wait = _asks(serving)
        unready = _first(serving, "readyz", 503)
        dead = unready + _first(serving, "livez", 503)
        serving.until(lambda: "no engine step was seen" in serving.probe("livez")[1]["reason"])
    healed = serving.until_ready()
    assert wait()[-1] == b"data: [DONE]"
    faults.note(
        f"{title} hangs (SIGSTOP), a request queued",
        "found by the stall limit",
        unready=unready,
        dead=dead,
        healed=healed,
    )
    assert dead <= STALL_SECONDS + SLACK_SECONDS


def _slowed(serving: Serving, seconds: float, *, mark: bool) -> Callable[[], list[bytes]]:
    """As `_asks`, with a kernel that is slow for this request and not for a canary before it."""
    with suspended(serving.engine_process("EngineCore")):
        wait = _asks(serving)
        serving.until(lambda: serving.gate()["running"] == 1)
        write_text(serving.run_dir / "slow.json", json.dumps({"seconds": seconds, "mark": mark}))
    return wait


def test_compilation_is_no_hang(faults: Faults) -> None:
    """A kernel that compiles for longer than every limit costs neither readiness nor liveness."""
    serving = faults.engine()
    before = serving.status()["compiles"]["running_seconds"]
    wait = _slowed(serving, COMPILE_SECONDS, mark=True)
    started, said = time.monotonic(), set()
    while time.monotonic() - started < COMPILE_SECONDS:
        said |= {(name, serving.probe(name)[0]) for name in ("readyz", "livez")}
        said |= {("condition", serving.status()["condition"])}
        time.sleep(0.2)
    assert wait()[-1] == b"data: [DONE]"
    assert said >= {("readyz", 200), ("livez", 200), ("condition", "compiling_kernel")}
    assert ("readyz", 503) not in said
    assert ("livez", 503) not in said
    # from look to look, and a busy machine looks late
    counted = serving.status()["compiles"]["running_seconds"] - before
    assert counted == pytest.approx(COMPILE_SECONDS, abs=STALL_SECONDS / 2)
    faults.note(
        f"kernel compiles for {COMPILE_SECONDS:g} s, a request queued",
        "no fault",
        unready=None,
        dead=None,
        healed=None,
    )


def test_slow_kernel_without_a_compilation_is_a_hang(faults: Faults) -> None:
    """The same wait without the mark is found, so the test above can fail."""
    serving = faults.engine()
    wait = _slowed(serving, PATIENCE_SECONDS, mark=False)
    unready = _first(serving, "readyz", 503)
    dead = unready + _first(serving, "livez", 503)
    (serving.run_dir / "slow-over").touch()
    healed = serving.until_ready()
    assert wait()[-1] == b"data: [DONE]"
    faults.note(
        "kernel does not end, a request queued",
        "found by the stall limit",
        unready=unready,
        dead=dead,
        healed=healed,
    )
    assert dead <= STALL_SECONDS + SLACK_SECONDS


@pytest.mark.parametrize("fault", ["slow", "gone"])
def test_metrics_that_cannot_be_read_kill_nobody(faults: Faults, fault: str) -> None:
    """Without vLLM's counters a working engine stays ready and live on the word of its canary."""
    serving = faults.engine()
    path = serving.run_dir / "metrics-fault"
    write_text(path, fault)
    passed = serving.status()["canary"]["passed"]
    said: set[tuple[str, int]] = set()

    def three_more_canaries() -> bool:
        said.update((name, serving.probe(name)[0]) for name in ("readyz", "livez"))
        return bool(serving.status()["canary"]["passed"] >= passed + 3)

    serving.until(three_more_canaries)
    path.unlink()
    assert said == {("readyz", 200), ("livez", 200)}
    faults.note(f"/metrics is {fault}", "no fault", unready=None, dead=None, healed=None)


def _connection(serving: Serving, body: bytes, length: int) -> socket.socket:
    """A connection over which a completion was asked for, with `body` so far of what is said to be `length` bytes."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", serving.port))
    head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    client.sendall(f"{head}Content-Length: {length}\r\n\r\n".encode() + body)
    return client


def _stays_well(serving: Serving) -> None:
    """Longer than the stall limit, every probe passes."""
    started, said = time.monotonic(), set()
    while time.monotonic() - started < STALL_SECONDS * 1.5:
        said |= {(name, serving.probe(name)[0]) for name in ("readyz", "livez")}
        time.sleep(0.2)
    assert said == {("readyz", 200), ("livez", 200)}, serving.status()


def test_client_that_stops_sending_is_no_hang(faults: Faults) -> None:
    """A request whose body never comes whole is no work that the engine could stand still on."""
    serving = faults.engine()
    serving.until_ready()
    with closing(_connection(serving, b"{", 100)):
        serving.until(lambda: serving.gate()["uploading"] == 1)
        _stays_well(serving)
        assert serving.gate()["uploading"] == 1
    faults.note("a client stops sending its request", "no fault", unready=None, dead=None, healed=None)


def test_client_that_does_not_read_is_no_hang(faults: Faults) -> None:
    """The engine has done with an answer that its client does not take, so the canary speaks for it."""
    serving = faults.engine()
    serving.until_ready()

    def queued() -> int:
        page = httpx.get(f"{serving.api}/metrics", headers=serving.internal(), timeout=PATIENCE_SECONDS).text
        steps = parse_steps(page)
        return steps.pending if steps else 0

    # more than the buffers of both ends take
    wish = {"model": "glm-5", "prompt": "hello", "max_tokens": 400, "n": 16, "logprobs": 20}
    body = json.dumps(wish | {"stream": True, "ignore_eos": True}).encode()
    with closing(_connection(serving, body, len(body))):
        serving.until(lambda: queued() > 0)
        serving.until(lambda: queued() == 0, START_SECONDS)
        _stays_well(serving)
        assert serving.gate()["running"] == 1
    faults.note("a client does not read its answer", "no fault", unready=None, dead=None, healed=None)


def test_missing_attestation_costs_readiness_only(faults: Faults) -> None:
    """A rank that attests nothing takes the engine out of service; a restart would not help, so it stays alive."""
    serving = faults.engine()
    path = serving.run_dir / "attention" / "rank-0.json"
    kept = path.read_text()
    path.unlink()
    unready = _first(serving, "readyz", 503)
    assert (serving.status()["condition"], serving.probe("livez")[0]) == ("backend_not_attested", 200)
    write_text(path, kept)
    healed = serving.until_ready()
    faults.note(
        "attestation of a rank is missing", "not ready, alive", unready=unready, dead=None, healed=healed
    )


def test_attestation_of_another_backend_costs_readiness_only(faults: Faults) -> None:
    """A rank on another backend takes the engine out of service and says which one runs."""
    serving = faults.engine()
    path = serving.run_dir / "attention" / "rank-0.json"
    kept = path.read_text()
    write_text(path, json.dumps(json.loads(kept) | {"backend": "FLASHMLA"}))
    unready = _first(serving, "readyz", 503)
    assert (
        serving.probe("readyz")[1]["reason"]
        == "rank 0 runs attention backend FLASHMLA; expected TORCH_MLA_SPARSE"
    )
    assert (serving.status()["phase"], serving.probe("livez")[0]) == ("failed", 200)
    write_text(path, kept)
    healed = serving.until_ready()
    faults.note(
        "a rank attests another backend", "not ready, alive", unready=unready, dead=None, healed=healed
    )


def test_hung_api_server_is_found(faults: Faults) -> None:
    """An API server that answers nothing fails the canary like an engine that computes nothing."""
    serving = faults.engine()
    with suspended(psutil.Process(serving.status()["pid"])):
        unready = _first(serving, "readyz", 503)
        dead = unready + _first(serving, "livez", 503)
    healed = serving.until_ready()
    faults.note(
        "API server hangs (SIGSTOP), idle", "found by the canary", unready=unready, dead=dead, healed=healed
    )
    assert dead <= IDLE_SECONDS + FAILURES * (CANARY_SECONDS + RETRY_SECONDS) + SLACK_SECONDS


def test_dead_core_behind_a_living_api_server_is_found(faults: Faults) -> None:
    """While the API server cannot notice that its engine died, the missing process is enough."""
    serving = faults.engine()
    core = serving.engine_process("EngineCore")
    started = time.monotonic()
    with suspended(psutil.Process(serving.status()["pid"])):
        core.kill()
        dead = _first(serving, "livez", 503)
        assert "EngineCore" in serving.probe("livez")[1]["reason"]
    serving.until(lambda: serving.process.poll() is not None)
    ended = time.monotonic() - started
    assert serving.process.returncode == 6
    faults.note(
        "core killed behind a stopped API server", "process is missing", unready=dead, dead=dead, ended=ended
    )
    assert dead <= SLACK_SECONDS


@pytest.mark.parametrize("title", ["EngineCore", "Worker"])
def test_killed_process_ends_the_engine(faults: Faults, title: str) -> None:
    """SIGKILL of core or worker ends the command with exit code 6 and leaves no process behind."""
    serving = faults.engine()
    family = [psutil.Process(serving.status()["pid"])]
    family += family[0].children(recursive=True)
    victim = serving.engine_process(title)
    started = time.monotonic()
    os.kill(victim.pid, signal.SIGKILL)
    dead = serving.until(lambda: serving.probe("livez")[0] in (503, 0))
    serving.until(lambda: serving.process.poll() is not None)
    ended = time.monotonic() - started
    assert serving.process.returncode == 6
    assert serving.engine_json()["phase"] == "failed"
    assert [process.pid for process in family if process.is_running()] == []
    faults.note(f"{title} killed (SIGKILL)", "process is missing", unready=dead, dead=dead, ended=ended)
    assert ended <= STOP_SECONDS + SLACK_SECONDS
