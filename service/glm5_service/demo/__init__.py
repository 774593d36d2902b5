"""`glm5 demo` in the order it runs: serve the demo model or take a running server, ask, show, leave.

Asking is `ask`'s, the child process `launch`'s, what the user sees `show`'s.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

from glm5_service.contracts.attestation import Attestation
from glm5_service.contracts.engine import EngineState
from glm5_service.demo import launch
from glm5_service.demo.ask import LOOPBACK, Asker
from glm5_service.demo.show import show_backend, show_curl, show_plain, show_streamed
from glm5_service.errors import ExitCode, ModelError
from glm5_service.rundir import RunDir, read
from glm5_service.settings import load

# where the demo model lies: in a checkout, and in the image engine-cpu
DEMO_MODEL_FOLDERS = (
    Path(__file__).parents[3] / "demo_model",
    Path(sys.prefix) / "share" / "glm5" / "demo_model",
)
DEMO_MODEL_FILE = "glm5-demo-00001-of-00003.gguf"
QUESTIONS = ("What is the virtual block table?", "Which attention backend is running?")


def run(
    model: Path | None,
    *,
    host: str,
    port: int | None,
    question: str | None,
    keep: bool,
    url: str | None = None,
) -> int:
    """Ask the server at `url`, or serve `model` for as long as the questions take; returns the exit code.

    Raises a Glm5Error if the server does not start, does not answer or refuses.
    """
    questions = (question,) if question else QUESTIONS
    settings = load().settings
    key = settings.engine.api_key.get_secret_value() if settings.engine.api_key else None
    if url is not None:
        asker = Asker(url, key)
        _ask(asker, questions)
        show_backend(_attested_by(url, RunDir(settings.run_dir)))
        return ExitCode.DONE
    path = _model_file(model)
    port = port or launch.free_port()
    with tempfile.TemporaryDirectory(prefix="glm5-demo-") as folder:
        run_dir = Path(folder)
        server = launch.Server(
            launch.serve_argv(path, host, port, run_dir), f"http://{host}:{port}/v1", run_dir
        )
        with server:
            asker = Asker(server.url, key)
            server.wait(asker)
            _ask(asker, questions)
            show_backend(RunDir(run_dir).attestations())
            if keep:
                server.stay(lambda: show_curl(server.url, asker.model, questions[0]))
        return server.exit_code


def _model_file(named: Path | None) -> Path:
    """The file to serve: the one named, or the demo model's first split. Raises ModelError where there is none."""
    places = [named] if named else [folder / DEMO_MODEL_FILE for folder in DEMO_MODEL_FOLDERS]
    for place in places:
        if place.exists():
            return place
    raise ModelError(
        "demo model not found",
        " or ".join(map(str, places)),
        expected="a GGUF file",
        remedy="Name one: `glm5 demo MODEL`.",
    )


def _ask(asker: Asker, questions: tuple[str, ...]) -> None:
    """The first question plain, the last one streaming, as the next turn of the same conversation."""
    answer = asker.ask(questions[0])
    show_plain(questions[0], answer)
    show_streamed(questions[-1], asker.stream(questions[-1]))


def _attested_by(url: str, run_dir: RunDir) -> list[Attestation]:
    """What the ranks attested, if this host's run directory belongs to the server at `url`."""
    state = read(run_dir.engine, EngineState)
    target = urlsplit(url)
    if state is None or target.hostname not in LOOPBACK or str(target.port) not in state.argv:
        return []
    return run_dir.attestations()
