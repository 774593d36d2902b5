"""The command `glm5 stage` as a process of its own, to be killed and to compete."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

from tests.support.glm5_command import PATIENCE_SECONDS, clean_environment

QUICK = ("part_bytes=1048576", "backoff_seconds=0.01", "stall_seconds=60", "headroom_bytes=0")


def start_stage(source: str, target: Path, *, settings: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    """Start `glm5 stage SOURCE --target TARGET`; stderr is its log."""
    command = [sys.executable, "-m", "glm5_service", "stage", source, "--target", str(target)]
    command += ["--run-dir", str(target.parent / "run")]
    for setting in (*QUICK, *settings):
        command += ["--set", f"staging.{setting}"]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=clean_environment())


class Follower(threading.Thread):
    """Reads a stager's log as it comes; sets `waits` when the stager says that it waits for another one."""

    def __init__(self, process: subprocess.Popen[str], waits: threading.Event) -> None:
        super().__init__(daemon=True)
        self._process, self._waits, self._log = process, waits, ""
        self.start()

    def run(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._log += line
            if "another stager works on" in line:
                self._waits.set()

    def end(self) -> str:
        """The whole log, once the stager has ended."""
        self._process.wait(PATIENCE_SECONDS)
        self.join()
        return self._log
