"""The command line: exit codes, sentences, and refusal before the engine starts."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from glm5_service import cli
from tests.support.glm5_command import PATIENCE_SECONDS, glm5

Capture = pytest.CaptureFixture[str]
HEAVY = ("torch", "vllm", "glm5_vllm", "fastapi", "httpx", "pydantic")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model that the stand-in plugin calls good."""
    path = tmp_path / "good.gguf"
    path.write_text("good")
    return path


@pytest.fixture
def busy_port() -> Iterator[int]:
    """A port on which somebody listens."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        yield int(holder.getsockname()[1])


def test_help_imports_nothing_heavy() -> None:
    """`glm5 --help` lists every command without importing settings, vLLM or the plugin."""
    script = (
        "import sys; from glm5_service.cli import run; run(['--help']); "
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert [name for name in cli.COMMANDS if f"\n  {name} " not in done.stdout] == []


def test_config_shows_value_and_origin(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """`glm5 config --json` gives every setting with value, origin and variable."""
    monkeypatch.setenv("GLM5_ENGINE__PORT", "8123")
    assert cli.run(["config", "--json", "--set", "engine.host=::1"]) == 0
    rows = {row["name"]: (row["value"], row["origin"]) for row in json.loads(capsys.readouterr().out)}
    assert rows["engine.port"] == (8123, "env GLM5_ENGINE__PORT")
    assert rows["engine.host"] == ("::1", "flag --set")
    assert rows["engine.dtype"] == ("auto", "default")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["serve", "--prot", "1"], "No such option"),
        (["serv"], "No such command"),
        (["config", "--set", "engine.prot=1"], "Did you mean engine.port?"),
        (["config", "--set", "engine.port"], "expected NAME=VALUE"),
        (["serve"], "no model given"),
        (["serve", "/nowhere/at-all"], "no such model: /nowhere/at-all"),
        (["gguf", "inspect", "/nowhere/at-all"], "no such model: /nowhere/at-all"),
    ],
)
def test_wrong_usage_ends_with_2(arguments: list[str], sentence: str, capsys: Capture) -> None:
    """A usage error is exit code 2 and says what is wrong."""
    assert cli.run(arguments) == 2
    assert sentence in capsys.readouterr().err


def test_sigterm_ends_a_command_that_is_the_first_process() -> None:
    """SIGTERM ends a command also where the kernel would not let it, as for the first process of a container."""
    ignoring = f"trap '' TERM; echo; exec {sys.executable} -m glm5_service cluster check"
    process = subprocess.Popen(["sh", "-c", ignoring], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not _catches(process.pid, signal.SIGTERM):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.terminate()
    assert process.wait(PATIENCE_SECONDS) == 128 + signal.SIGTERM


def _catches(pid: int, number: signal.Signals) -> bool:
    """Whether the process has a handler for the signal."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    caught = next(line.split()[1] for line in lines if line.startswith("SigCgt:"))
    return bool(int(caught, 16) >> (number - 1) & 1)


class _Interrupted:
    """What a class holds that is made while SIGTERM comes."""

    def __set_name__(self, owner: type, name: str) -> None:
        sys.exit(128 + signal.SIGTERM)


def _import(*arguments: object, **options: object) -> None:
    type("Made", (), {"held": _Interrupted()})


def test_sigterm_while_a_class_is_made_is_no_internal_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The exit that a signal asks for goes through where Python wraps it in another error, as during imports."""
    monkeypatch.setattr(cli.cli, "main", _import)
    with pytest.raises(SystemExit) as ended:
        cli.run([])
    assert ended.value.code == 128 + signal.SIGTERM


def test_traceback_only_when_asked(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """An expected error is one line on stderr; GLM5_TRACEBACK=1 shows where it came from."""
    assert cli.run(["serve"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    monkeypatch.setenv("GLM5_TRACEBACK", "1")
    assert cli.run(["serve"]) == 2
    shown = capsys.readouterr().err
    assert "Traceback" in shown
    assert "no model given" in shown


@pytest.mark.parametrize(
    ("text", "code", "sentence"),
    [
        ("broken", 4, "not a GGUF file"),
        ("refused", 4, "model.gguf: tensor blk.0.odd: unknown to the loader. See `glm5 gguf inspect`"),
        ("garbage", 6, "model inspection gave no readable report"),
    ],
)
def test_serve_refuses_what_inspection_refuses(tmp_path: Path, text: str, code: int, sentence: str) -> None:
    """A model that cannot be served ends the command before the engine is started."""
    model = tmp_path / "model.gguf"
    model.write_text(text)
    done = glm5("serve", model, "--port", 18999, "--run-dir", tmp_path / "run", "--profile", "cpu")
    assert (done.returncode, done.stderr.count("\n")) == (code, 1)
    assert sentence in done.stderr
    assert not (tmp_path / "run" / "started.json").exists()


def test_serve_refuses_a_busy_port(model: Path, busy_port: int) -> None:
    """A port that is taken is a wrong setting, found before the engine starts."""
    done = glm5("serve", model, "--host", "127.0.0.1", "--port", busy_port, "--profile", "cpu")
    assert (done.returncode, done.stderr) == (
        2,
        f"glm5: port is in use: 127.0.0.1:{busy_port}; expected a free port. "
        "Stop what listens there, or set engine.port.\n",
    )


def test_inspect_passes_output_and_code_through(tmp_path: Path, model: Path) -> None:
    """`glm5 gguf inspect` prints what the plugin prints and ends with its exit code."""
    done = glm5("gguf", "inspect", model, "--json")
    assert (done.returncode, json.loads(done.stdout)["architecture"]) == (0, "glm-dsa")
    broken = tmp_path / "broken.gguf"
    broken.write_text("broken")
    assert glm5("gguf", "inspect", broken, "--json").returncode == 4
