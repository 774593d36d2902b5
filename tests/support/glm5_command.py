"""Runs the command `glm5` in a process, with a stand-in for the plugin where a test asks for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

FAKE_PLUGIN = Path(__file__).parent / "fake_plugin"
# what takes seconds on an idle machine; a wait that ends only if something is wrong need not be short
PATIENCE_SECONDS = 240.0


def clean_environment(**extra: str) -> dict[str, str]:
    """This process's environment without settings, and `extra`."""
    return {name: value for name, value in os.environ.items() if not name.startswith("GLM5_")} | extra


def glm5(*arguments: object, fake: bool = True, timeout: float = PATIENCE_SECONDS, **environment: str) -> Any:
    """Run `glm5 ARGUMENTS` to its end; with `fake` the stand-in replaces the plugin."""
    return subprocess.run(
        [sys.executable, "-m", "glm5_service", *map(str, arguments)],
        env=clean_environment(**({"PYTHONPATH": str(FAKE_PLUGIN)} if fake else {}), **environment),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def start_glm5(
    *arguments: object, log: Path, fake: bool = True, **environment: str
) -> subprocess.Popen[bytes]:
    """Start `glm5 ARGUMENTS`, its output in the file `log`; the caller ends it."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "glm5_service", *map(str, arguments)],
            env=clean_environment(**({"PYTHONPATH": str(FAKE_PLUGIN)} if fake else {}), **environment),
            stdout=output,
            stderr=subprocess.STDOUT,
        )


def wait_for_json(path: Path, process: subprocess.Popen[bytes]) -> dict[str, Any]:
    """The content of a JSON file, once it is there; fails if the process that shall write it ends first."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not path.exists():
        ended = process.poll() is not None and not path.exists()
        assert not ended, f"{path} did not appear, ended with {process.returncode}"
        assert time.monotonic() < deadline, f"{path} did not appear in {PATIENCE_SECONDS:g} s"
        time.sleep(0.02)
    content: dict[str, Any] = json.loads(path.read_text())
    return content
