"""The real vLLM engine for tests, one process a call, so that no state of one run reaches the next."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any

from glm5_service.watch.logwatch import LogFacts, read_line

ROOT = Path(__file__).resolve().parents[2]
LOG = "engine.log"


@dataclass(frozen=True)
class EngineRun:
    """One engine start and the prompts given to it, all at once, `rounds` times."""

    model: str
    prompts: list[list[int]]
    max_tokens: int = 8
    logprobs: int = 5
    ignore_eos: bool = True
    rounds: int = 1
    engine: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Completion:
    """Greedy continuation of one prompt; `logprobs[i]` maps the top tokens of step i to their logprobs."""

    tokens: list[int]
    logprobs: list[dict[int, float]]
    cached_tokens: int


def run_engine(run: EngineRun, folder: Path, timeout_seconds: float = 900) -> list[list[Completion]]:
    """Completions of every round, in the order of the prompts. Raises AssertionError with the log's end on failure."""
    spec, out = folder / "spec.json", folder / "out.json"
    spec.write_text(json.dumps(asdict(run)))
    out.unlink(missing_ok=True)
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.engine_run", str(spec), str(out)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout_seconds,
        check=False,
    )
    log = done.stdout + done.stderr
    (folder / LOG).write_text(log)
    assert done.returncode == 0, f"engine ended with {done.returncode}:\n{log[-6000:]}"
    return [
        [
            Completion(
                c["tokens"], [{int(t): p for t, p in s.items()} for s in c["logprobs"]], c["cached_tokens"]
            )
            for c in completions
        ]
        for completions in json.loads(out.read_text())["rounds"]
    ]


def log_facts(folder: Path) -> LogFacts:
    """What the supervisor would have read in the log of the run in `folder`."""
    return reduce(read_line, (folder / LOG).read_text().splitlines(), LogFacts())
