"""The command `glm5 stage` as a process of its own, to be killed and to compete."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.glm5_command import clean_environment

QUICK = ("part_bytes=1048576", "backoff_seconds=0.01", "stall_seconds=5", "headroom_bytes=0")


def start_stage(source: str, target: Path, *, settings: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    """Start `glm5 stage SOURCE --target TARGET`; stderr is its log."""
    command = [sys.executable, "-m", "glm5_service", "stage", source, "--target", str(target)]
    command += ["--run-dir", str(target.parent / "run")]
    for setting in (*QUICK, *settings):
        command += ["--set", f"staging.{setting}"]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=clean_environment())
