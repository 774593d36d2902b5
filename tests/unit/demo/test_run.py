"""The whole demo: a server of its own or a running one, what is shown, how it ends."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from glm5_service import demo
from glm5_service.demo import launch, run
from glm5_service.demo.launch import Server, serve_argv
from glm5_service.errors import EngineError, ExitCode, ModelError
from tests.support.fake_openai import ATTESTATION, fake_argv, serving
from tests.support.glm5_command import PATIENCE_SECONDS
from tests.support.serving import free_port

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model file, served by the fake."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(launch, "serve_argv", fake_argv)
    path = tmp_path / "model.gguf"
    path.touch()
    return path


def test_demo_serves_asks_shows_and_stops(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The demo shows a plain and a streamed answer with their speed and the attested backend, and stops the server."""
    port = free_port()
    run(model, host="127.0.0.1", port=port, question=None, keep=False)
    shown = capsys.readouterr().out
    assert shown.count("A: It is a list.") == 2
    assert "plain: 4 tokens in" in shown
    assert "streaming: first token after" in shown
    assert "Attention backend of rank 0: TORCH_MLA_SPARSE (a.B)" in shown
    with pytest.raises(EngineError, match="no server answers"):
        run(None, host="", port=None, question=None, keep=False, url=f"http://127.0.0.1:{port}/v1")


def test_keep_shows_curl_and_serves_until_told_to_stop(model: Path, tmp_path: Path) -> None:
    """With `keep` the server stays, the request of the curl line shown works, and SIGTERM ends both."""
    program = (
        "import sys; from pathlib import Path\n"
        "from glm5_service.demo import launch, run\n"
        "from tests.support.fake_openai import fake_argv\n"
        "launch.serve_argv = fake_argv\n"
        f"sys.exit(run(Path({str(model)!r}), host='127.0.0.1', port=None, question='It\\'s what?', keep=True))\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as demo:
        assert demo.stdout is not None
        lines: list[str] = []
        while not (lines and lines[-1].startswith("    -d ")):
            lines.append(demo.stdout.readline())
            assert lines[-1], "the demo ended early:\n" + "".join(lines)
        curl = shlex.split(lines[-2].rstrip("\\\n") + lines[-1])
        reply = httpx.post(
            curl[1],
            content=curl[5],
            headers=[curl[3].split(": ")],
            timeout=PATIENCE_SECONDS,
            trust_env=False,
        )
        demo.send_signal(signal.SIGTERM)
        rest = demo.stdout.read()
    assert reply.json()["choices"][0]["message"]["content"] == "It is a list."
    assert "Stopping." in rest


def test_a_running_server_is_asked(capsys: pytest.CaptureFixture[str]) -> None:
    """With an address the running server is asked the question given, and an unknown backend is said to be unknown."""
    with serving() as server:
        code = run(None, host="", port=None, question="Why?", keep=False, url=server.url)
    shown = capsys.readouterr().out
    assert code == ExitCode.DONE
    assert shown.count("Q: Why?\nA: It is a list.") == 2
    assert "Attention backend: unknown" in shown


@pytest.mark.parametrize(("argv", "shown"), [("same", True), ("other", False)])
def test_the_backend_shown_is_that_of_the_server_asked(
    argv: str,
    shown: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The run directory's attestation counts only if its engine listens on the port that was asked."""
    monkeypatch.setenv("GLM5_RUN_DIR", str(tmp_path))
    (tmp_path / "attention").mkdir()
    (tmp_path / "attention" / "rank-0.json").write_text(json.dumps(ATTESTATION))
    with serving() as server:
        port = server.server_port if argv == "same" else server.server_port + 1
        state = {
            "phase": "ready",
            "since": "2026-01-01T00:00:00Z",
            "reason": "",
            "argv": ["--port", str(port)],
        }
        (tmp_path / "engine.json").write_text(json.dumps(state))
        run(None, host="", port=None, question=None, keep=False, url=server.url)
    assert ("TORCH_MLA_SPARSE" in capsys.readouterr().out) == shown


def test_a_missing_model_is_refused() -> None:
    """A model that is not there is an error before anything starts."""
    with pytest.raises(ModelError, match=r"demo model not found: /nowhere\.gguf; expected a GGUF file"):
        run(Path("/nowhere.gguf"), host="127.0.0.1", port=None, question=None, keep=False)


def test_the_demo_model_is_found_in_a_checkout_and_in_an_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a name the demo serves the checkout's model; an installed package finds it where the image has it."""
    served: list[Path] = []

    def stop(path: Path, *_: object) -> list[str]:
        served.append(path)
        raise ZeroDivisionError

    monkeypatch.setattr(launch, "serve_argv", stop)
    in_image = Path("share/glm5/demo_model")
    assert demo.DEMO_MODEL_FOLDERS[-1] == Path(sys.prefix) / in_image
    [copied] = [
        line for line in (ROOT / "docker/Dockerfile").read_text().splitlines() if "COPY demo_model" in line
    ]
    assert copied == f"COPY demo_model/*.gguf /own/{in_image}/"
    installed = tmp_path / in_image / demo.DEMO_MODEL_FILE
    installed.parent.mkdir(parents=True)
    installed.touch()
    for folders, expected in [
        (demo.DEMO_MODEL_FOLDERS, ROOT / "demo_model" / demo.DEMO_MODEL_FILE),
        ((tmp_path / "site-packages", installed.parent), installed),
    ]:
        monkeypatch.setattr(demo, "DEMO_MODEL_FOLDERS", folders)
        with pytest.raises(ZeroDivisionError):
            run(None, host="127.0.0.1", port=1, question=None, keep=False)
        assert served.pop() == expected


@pytest.mark.parametrize(("code", "expected"), [(4, ExitCode.MODEL), (77, ExitCode.ENGINE)])
def test_a_server_that_ends_is_reported_with_its_code_and_last_words(
    code: int, expected: ExitCode, tmp_path: Path
) -> None:
    """A server that ends before it answers is an error with its own exit code and the end of its log."""
    program = f"print('the file is broken'); raise SystemExit({code})"
    url = f"http://127.0.0.1:{free_port()}/v1"
    with Server([sys.executable, "-c", program], url, tmp_path) as server:
        server._process.wait()
        with pytest.raises(EngineError, match="the file is broken") as error:
            server.wait(_never())
    assert error.value.exit_code == expected


def test_leaving_stops_a_server_that_never_answered(tmp_path: Path) -> None:
    """Whatever happens inside, leaving the `with` ends the server."""
    program = "import time; time.sleep(600)"
    with pytest.raises(KeyboardInterrupt), Server([sys.executable, "-c", program], "", tmp_path) as server:
        raise KeyboardInterrupt
    assert server.exit_code == -signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(server._process.pid, 0)


def test_told_to_stop_while_it_says_how_to_ask(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Who reads the curl line may send SIGTERM before the line's writer goes on; that is a stop like any other."""

    def announce() -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    with Server([sys.executable, "-c", "import time; time.sleep(600)"], "", tmp_path) as server:
        server.stay(announce)
    assert "Stopping." in capsys.readouterr().out
    assert server.exit_code == -signal.SIGTERM


def test_serve_argv_is_local_and_separate(tmp_path: Path) -> None:
    """The demo's server listens on this host only, has its own run directory and its own health port."""
    argv = serve_argv(Path("m.gguf"), "127.0.0.1", 8123, tmp_path)
    assert argv[3:10] == ["serve", "m.gguf", "--host", "127.0.0.1", "--port", "8123", "--run-dir"]
    assert "health.host=127.0.0.1" in argv


def _never() -> launch.Asker:
    class Never(launch.Asker):
        def __init__(self) -> None:
            """Ask nobody."""

        def answers(self) -> bool:
            return False

    return Never()
