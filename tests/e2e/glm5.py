"""What the end-to-end steps ask of the release glm5 and of the server its model comes from. Knows no expectations."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from openai import OpenAI

from tests.e2e import release as r
from tests.support.chart import ROOT

Values = dict[str, Any]
# a busy machine with two cores takes minutes to import vLLM in three processes
START_SECONDS = 900
# whatever else the cluster has to do: a pod, a container, an answer
SOON_SECONDS = 300
# a step has several of these; its own waits say better what was missed
STEP_SECONDS = 3600
MODEL_FILES = sorted((ROOT / "service" / "demo_model").glob("*.gguf"))
MODEL_BYTES = sum(path.stat().st_size for path in MODEL_FILES)
QUESTION: Any = [{"role": "user", "content": "What is this project?"}]
# each of two connections has a send and a receive buffer full on the way when a stager dies
LOST_BYTES = MODEL_BYTES // 20 + 2 * (1 << 19)


def sent() -> dict[str, int]:
    """Bytes of each model file that left the model server so far."""
    text = r.kubectl(
        "exec", "deployment/models", "--", "python3", "-c",
        "import urllib.request; print(urllib.request.urlopen('http://127.0.0.1:8080/sent').read().decode())",
    )  # fmt: skip
    found: dict[str, int] = json.loads(text)
    return found


def sent_in_all() -> int:
    """Bytes of all model files that left the model server so far."""
    return sum(sent().values())


def wait_ready(not_uid: str | None = None) -> None:
    """Until the pod, and not the one before it, is ready."""
    r.until("glm5-0 ready", START_SECONDS, lambda: r.is_ready(not_uid=not_uid))


def restarts() -> int:
    """How often the engine's container was started again."""
    return int(r.container("engine")["restartCount"])


def client(url: str) -> OpenAI:
    """The SDK on a forwarded port, with the key of the example."""
    return OpenAI(base_url=f"{url}/v1", api_key="try-me", max_retries=0, timeout=120)


def answer() -> str:
    """What the model answers through the Service."""
    with r.forwarded("service/glm5", 8000) as url:
        said = client(url).chat.completions.create(
            model="glm5-demo", messages=QUESTION, max_tokens=64, temperature=0
        )
    return said.choices[0].message.content or ""


def _status(release: str, *options: str) -> list[str]:
    glm5 = str(ROOT / ".venv/bin/glm5")
    return [glm5, "cluster", "status", "-n", r.NAMESPACE, "--release", release, *options]


def status(release: str = "glm5") -> list[str]:
    """The screen of `glm5 cluster status`, line by line."""
    done = subprocess.run(_status(release), capture_output=True, text=True, check=False, timeout=SOON_SECONDS)
    return done.stdout.splitlines()


@contextmanager
def watched() -> Iterator[set[str]]:
    """The engine's phases that `glm5 cluster status --watch` shows meanwhile; complete at the end."""
    seen: set[str] = set()
    process = subprocess.Popen(_status("glm5", "--watch"), stdout=subprocess.PIPE, text=True)
    try:
        yield seen
    finally:
        process.terminate()
        seen.update(re.findall(r"^phase +(\w+)", process.communicate()[0], re.MULTILINE))


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
