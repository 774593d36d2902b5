"""The supervisor with a small script in the engine's place: signals, fates, leftovers."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import pytest

from glm5_service.contracts.engine import EngineState
from glm5_service.engine.command_line import EngineCommand
from glm5_service.errors import EngineError
from glm5_service.model.inspection import ModelFacts
from glm5_service.preflight.check import Cleared
from glm5_service.preflight.findings import Report
from glm5_service.settings import Settings
from glm5_service.supervise.start import run
from glm5_service.supervise.supervisor import Launch, Supervisor
from tests.support.glm5_command import PATIENCE_SECONDS, wait_for_json
from tests.support.serving import Serving, free_port, start_serving

Serve = Callable[..., tuple["subprocess.Popen[bytes]", dict[str, Any]]]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Starts `glm5 serve` with a stand-in engine of the given behaviour."""
    running: list[Serving] = []
    model = tmp_path / "good.gguf"
    model.write_text("good")

    def start(behaviour: str, *pairs: str) -> tuple[subprocess.Popen[bytes], dict[str, Any]]:
        pairs = ("engine.profile=cpu", "preflight.enabled=false", *pairs)
        serving = start_serving(model, tmp_path, *pairs, fake=True, FAKE_ENGINE=behaviour)
        running.append(serving)
        process = serving.process
        engine = wait_for_json(tmp_path / "started.json", process)
        while _phase(tmp_path) == "preflight":
            # one that has ended has written its last
            assert process.poll() is None or _phase(tmp_path) != "preflight"
            time.sleep(0.02)
        return process, engine

    yield start
    for serving in running:
        serving.stop()


def _phase(tmp_path: Path) -> str:
    phase: str = json.loads((tmp_path / "engine.json").read_text())["phase"]
    return phase


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_requested_stop_ends_with_0(serve: Serve, tmp_path: Path, number: signal.Signals) -> None:
    """The signal reaches the engine, its end is waited for, and the command ends with 0."""
    process, engine = serve("obey")
    process.send_signal(number)
    assert process.wait(PATIENCE_SECONDS) == 0
    assert not psutil.pid_exists(engine["pid"])
    assert _phase(tmp_path) == "stopped"


def test_engine_that_ends_by_itself_is_exit_code_6(serve: Serve, tmp_path: Path) -> None:
    """An engine that exits unasked is a failure that names its exit code, after its own log."""
    process, _ = serve("crash")
    assert process.wait(PATIENCE_SECONDS) == 6
    output = (tmp_path / "serve.log").read_text()
    assert "engine says hello" in output
    assert "the engine ended by itself: exit code 3" in output
    assert _phase(tmp_path) == "failed"


def test_killed_engine_is_exit_code_6(serve: Serve, tmp_path: Path) -> None:
    """An engine that somebody kills is a failure that names the signal."""
    process, engine = serve("obey")
    psutil.Process(engine["pid"]).kill()
    assert process.wait(PATIENCE_SECONDS) == 6
    assert "killed by SIGKILL" in (tmp_path / "serve.log").read_text()


def test_second_signal_ends_at_once(serve: Serve, tmp_path: Path) -> None:
    """An engine that ignores the first signal is killed by the second, long before the stop timeout."""
    process, engine = serve("stubborn", "engine.stop_timeout_seconds=600")
    process.send_signal(signal.SIGTERM)
    while _phase(tmp_path) != "draining":
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE_SECONDS) == 0
    assert not psutil.pid_exists(engine["pid"])


def test_engine_that_does_not_stop_is_killed(serve: Serve) -> None:
    """After the stop timeout the engine is killed, and the requested stop is still a success."""
    process, engine = serve("stubborn", "engine.stop_timeout_seconds=0.2")
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE_SECONDS) == 0
    assert not psutil.pid_exists(engine["pid"])


@pytest.mark.parametrize(("behaviour", "code"), [("leave-child", 0), ("crash-and-leave-child", 6)])
def test_leftover_processes_are_killed(serve: Serve, behaviour: str, code: int) -> None:
    """A worker that outlives the engine, and so would hold its GPU, is killed and reaped."""
    process, engine = serve(behaviour)
    if code == 0:
        process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE_SECONDS) == code
    assert not psutil.pid_exists(engine["orphan"])


def test_engine_json_says_what_runs(serve: Serve, tmp_path: Path) -> None:
    """engine.json carries the command line, the pid and the versions, and no secret."""
    _, engine = serve("obey", "engine.api_key=hunter2")
    state = json.loads((tmp_path / "engine.json").read_text())
    assert state["argv"][3:] == engine["argv"]
    assert (state["pid"], state["phase"]) == (engine["pid"], "starting")
    assert "glm5-service" in state["versions"]
    assert engine["env"]["VLLM_API_KEY"] == "hunter2"
    assert "hunter2" not in json.dumps(state)


def test_an_engine_does_not_outlive_a_fault_of_its_supervisor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever goes wrong while it stops, the engine is killed and waited for."""

    async def fails(*arguments: object) -> None:
        raise RuntimeError("a fault")

    async def run() -> None:
        task = asyncio.create_task(_supervisor(tmp_path, program, str(started)).run())
        while not (started.exists() and started.read_text()):
            await asyncio.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(RuntimeError, match="a fault"):
            await task

    started = tmp_path / "started"
    monkeypatch.setattr("glm5_service.supervise.supervisor.adopt_orphans", lambda: None)
    monkeypatch.setattr(Supervisor, "_end", fails)
    program = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)"
    asyncio.run(run())
    assert not psutil.pid_exists(int(started.read_text()))


CORE_LOST = (
    "WARNING [core_client.py:818] [shutdown] MPClient: engine core exited unexpectedly; starting cleanup"
)


@pytest.mark.parametrize(
    ("end", "fate"),
    [
        ("sys.exit(0)", "it lost EngineCore, exit code 0"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "killed by SIGKILL"),
    ],
    ids=["ends by itself", "is killed"],
)
def test_an_engine_that_ends_before_the_next_look_says_what_it_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str, fate: str
) -> None:
    """vLLM ends a second after its core, maybe before anybody looks; its log has the word, unless somebody killed it."""
    monkeypatch.setattr("glm5_service.supervise.supervisor.adopt_orphans", lambda: None)
    program = f"import os, signal, sys; print({CORE_LOST!r}, flush=True); {end}"
    with pytest.raises(EngineError, match=f"the engine ended by itself: {fate};"):
        asyncio.run(_supervisor(tmp_path, program).run())


def _supervisor(tmp_path: Path, program: str, *arguments: str) -> Supervisor:
    """One whose engine is a python program, behind no API."""
    health = {"host": "127.0.0.1", "port": free_port()}
    settings = Settings.model_validate({"run_dir": tmp_path, "health": health})
    command = EngineCommand((sys.executable, "-c", program, *arguments), {}, {})
    state = EngineState(phase="starting", since=datetime.now(UTC), reason="")
    return Supervisor(Launch(command, "http://127.0.0.1:9", "token", state), settings)


def test_a_stop_while_a_class_is_made_is_a_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What Python wraps in another error, as it may during an import, is still told as a stop."""

    class Interrupted:
        def __set_name__(self, owner: type, name: str) -> None:
            sys.exit(128 + signal.SIGTERM)

    def clear(settings: Settings) -> None:
        type("Made", (), {"held": Interrupted()})

    monkeypatch.setattr("glm5_service.supervise.start.clear", clear)
    with pytest.raises((SystemExit, RuntimeError)):
        run(Settings.model_validate({"run_dir": tmp_path}))
    assert _phase(tmp_path) == "stopped"


READY = (
    '{"phase": "ready", "since": "2026-01-01T00:00:00Z", "reason": "idle", "ready": true, "started": true}'
)


def test_a_start_that_is_refused_leaves_no_ready_state(tmp_path: Path) -> None:
    """What a killed run left in engine.json ends with the next start, also if that never gets to an engine."""
    model = tmp_path / "bad.gguf"
    model.write_text("broken")
    (tmp_path / "engine.json").write_text(READY)
    serving = start_serving(model, tmp_path, "engine.profile=cpu", fake=True)
    assert serving.process.wait(PATIENCE_SECONDS) == 4
    state = serving.engine_json()
    assert (state["phase"], state["condition"]) == ("failed", "not_started")
    assert (state["ready"], state["live"], state["started"]) == (False, False, False)
    assert "not a GGUF file" in state["reason"]


def test_a_start_says_at_once_that_nothing_is_ready(tmp_path: Path) -> None:
    """During the checks the phase is preflight; a stop ends it as stopped, for those who wait for the end."""
    model = tmp_path / "slow.gguf"
    model.write_text("slow")
    (tmp_path / "engine.json").write_text(READY)
    serving = start_serving(model, tmp_path, "engine.profile=cpu", fake=True)
    try:
        serving.until(lambda: serving.engine_json()["phase"] == "preflight")
        assert (serving.engine_json()["ready"], serving.process.poll()) == (False, None)
        serving.process.terminate()
        assert serving.process.wait(PATIENCE_SECONDS) == 128 + signal.SIGTERM
        assert serving.engine_json()["phase"] == "stopped"
    finally:
        serving.stop()


def _taken_port(monkeypatch: pytest.MonkeyPatch, settings: Settings) -> None:
    holder = socket.socket()
    holder.bind((settings.health.host, settings.health.port))
    holder.listen()
    monkeypatch.setattr("glm5_service.supervise.supervisor.adopt_orphans", lambda _held=holder: None)


def _no_program(monkeypatch: pytest.MonkeyPatch, settings: Settings) -> None:
    command = EngineCommand(("/nowhere/python",), {}, {})
    monkeypatch.setattr("glm5_service.supervise.start.engine_command", lambda *arguments: command)


@pytest.mark.parametrize(
    ("fault", "error", "reason"),
    [
        (_taken_port, EngineError, "the health server cannot listen"),
        (_no_program, FileNotFoundError, "internal error: FileNotFoundError"),
    ],
    ids=["port taken after the checks", "engine cannot be started"],
)
def test_a_start_that_fails_after_the_checks_is_told(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: Callable[[pytest.MonkeyPatch, Settings], None],
    error: type[Exception],
    reason: str,
) -> None:
    """Where no look at the engine is ever written, the state is failed with the reason, and not preflight for ever."""
    health = {"host": "127.0.0.1", "port": free_port()}
    paths = {"run_dir": tmp_path, "cache_dir": tmp_path / "cache", "model": {"path": tmp_path / "m.gguf"}}
    settings = Settings.model_validate({**paths, "health": health})
    cleared = Cleared(ModelFacts(path=tmp_path / "m.gguf"), "cpu", None, "memory")
    monkeypatch.setattr("glm5_service.supervise.supervisor.adopt_orphans", lambda: None)
    monkeypatch.setattr("glm5_service.supervise.start.clear", lambda settings: (Report(findings=[]), cleared))
    fault(monkeypatch, settings)
    with pytest.raises(error):
        run(settings)
    state = json.loads((tmp_path / "engine.json").read_text())
    assert (state["phase"], state["condition"], state["live"]) == ("failed", "not_started", False)
    assert reason in state["reason"]


def test_engine_ends_with_a_killed_supervisor(serve: Serve) -> None:
    """Where the supervisor itself is killed, the engine is told to stop and does not keep port and GPU."""
    process, told = serve("obey")
    engine = psutil.Process(told["pid"])
    process.kill()
    process.wait()
    gone, _ = psutil.wait_procs([engine], timeout=PATIENCE_SECONDS)
    assert gone == [engine]
