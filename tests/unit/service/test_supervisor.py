"""The supervisor with a small script in the engine's place: signals, fates, leftovers."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.glm5_command import PATIENCE_SECONDS, wait_for_json
from tests.support.serving import Serving, start_serving

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
        wait_for_json(tmp_path / "engine.json", process)
        return process, wait_for_json(tmp_path / "started.json", process)

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


def test_engine_ends_with_a_killed_supervisor(serve: Serve) -> None:
    """Where the supervisor itself is killed, the engine is told to stop and does not keep port and GPU."""
    process, engine = serve("obey")
    process.kill()
    process.wait()
    left = [psutil.Process(engine["pid"])] if psutil.pid_exists(engine["pid"]) else []
    psutil.wait_procs(left, timeout=PATIENCE_SECONDS)
    assert not psutil.pid_exists(engine["pid"])
