"""What the end-to-end steps ask of the release glm5 and of the server its model comes from. Knows no expectations."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from openai import OpenAI

from tests.e2e import release as r
from tests.e2e.release import SOON_SECONDS
from tests.support.chart import ROOT

Values = dict[str, Any]
# a busy machine with two cores takes minutes to import vLLM in three processes
START_SECONDS = 900
# a step has several of these; its own waits say better what was missed
STEP_SECONDS = 3600
MODEL_FILES = sorted((ROOT / "demo_model").glob("*.gguf"))
MODEL_BYTES = sum(path.stat().st_size for path in MODEL_FILES)
QUESTION: Any = [{"role": "user", "content": "What is this project?"}]
# each of two connections has a send and a receive buffer full on the way when a stager dies
LOST_BYTES = MODEL_BYTES // 20 + 2 * (1 << 19)


def _ask_models(path: str) -> str:
    url = f"http://127.0.0.1:8080/{path}"
    script = f"import urllib.request; print(urllib.request.urlopen('{url}').read().decode())"
    return r.read("exec", "deployment/models", "--", "python3", "-c", script)


def sent() -> dict[str, int]:
    """Bytes of each model file that left the model server so far."""
    found: dict[str, int] = json.loads(_ask_models("sent"))
    return found


def sent_in_all() -> int:
    """Bytes of all model files that left the model server so far."""
    return sum(sent().values())


@contextmanager
def crawling() -> Iterator[None]:
    """Meanwhile the model server sends next to nothing, so that no transfer ends before it was looked at."""
    _ask_models("pace/crawl")
    try:
        yield
    finally:
        _ask_models("pace/walk")


def uninstall() -> None:
    """Remove the release, until its pod is gone."""
    r.helm("uninstall", "glm5", "--wait", "--timeout", "600s")
    r.until("no pod", SOON_SECONDS, lambda: r.pod_uid() is None)


def wait_ready(not_uid: str | None = None) -> None:
    """Until the pod, and not the one before it, is ready."""
    r.until("glm5-0 ready", START_SECONDS, lambda: r.is_ready(not_uid=not_uid))


def restarts() -> int:
    """How often the engine's container was started again."""
    return int(r.container("engine")["restartCount"])


def client(url: str) -> OpenAI:
    """The SDK on a forwarded port, with the key of the example."""
    return OpenAI(base_url=f"{url}/v1", api_key="try-me", max_retries=0, timeout=SOON_SECONDS)


def answer() -> str:
    """What the model answers through the Service."""
    with r.forwarded("service/glm5", 8000) as url:
        said = client(url).chat.completions.create(
            model="glm5-demo", messages=QUESTION, max_tokens=64, temperature=0
        )
    return said.choices[0].message.content or ""


def metrics() -> str:
    """The page of the pod's sidecar."""
    with r.forwarded("pod/glm5-0", 9400) as url:
        page: bytes = urllib.request.urlopen(f"{url}/metrics", timeout=60).read()
    return page.decode()


def _status(release: str, *options: str) -> list[str]:
    glm5 = str(ROOT / ".venv/bin/glm5")
    return [glm5, "cluster", "status", "-n", r.NAMESPACE, "--release", release, *options]


def status(release: str = "glm5") -> list[str]:
    """The screen of `glm5 cluster status`, line by line."""
    done = subprocess.run(_status(release), capture_output=True, text=True, check=False, timeout=SOON_SECONDS)
    return done.stdout.splitlines()


def screen(pattern: str, release: str = "glm5") -> list[str]:
    """The first screen of `glm5 cluster status` with a match of `pattern`, where ^ is a line's start, line by line."""

    def look() -> list[str]:
        lines = status(release)
        return lines if re.search(pattern, "\n".join(lines), re.MULTILINE) else []

    found: list[str] = r.until(f"a screen with {pattern}", SOON_SECONDS, look)
    return found


@contextmanager
def watched() -> Iterator[Callable[[], set[str]]]:
    """Tells which of the engine's phases `glm5 cluster status --watch` has shown, as they were or with what each took."""
    with tempfile.NamedTemporaryFile() as screens:
        process = subprocess.Popen(_status("glm5", "--watch"), stdout=screens)

        def shown() -> set[str]:
            text = Path(screens.name).read_text(errors="replace")
            spans = [
                span for line in re.findall(r"^so far +(.+)", text, re.MULTILINE) for span in line.split(", ")
            ]
            return {*re.findall(r"^phase +(\w+)", text, re.MULTILINE), *(span.split()[0] for span in spans)}

        try:
            yield shown
        finally:
            process.terminate()
            process.wait()


def damage(path: str) -> None:
    """Change one byte of a file that the engine's container sees."""
    r.in_engine(
        f"f = open('{path}', 'r+b'); f.seek(5000); b = f.read(1)[0]; f.seek(5000); f.write(bytes([b ^ 255]))"
    )


def signal_engine(name: str) -> list[str]:
    """Send a signal to the process that vLLM titles EngineCore; returns its id."""
    return r.in_engine(
        "import os, signal, pathlib\n"
        "for p in pathlib.Path('/proc').glob('[0-9]*/cmdline'):\n"
        "    if p.read_bytes().startswith(b'VLLM::EngineCore'):\n"
        f"        os.kill(int(p.parent.name), signal.{name}); print(p.parent.name)\n"
    ).split()
