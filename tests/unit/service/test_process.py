"""The engine's session after its end: nothing is left of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ENGINE = """
import os, signal, sys, time
if os.fork() == 0:
    dead = os.fork()
    if dead == 0:
        os._exit(0)
    os.waitid(os.P_PID, dead, os.WEXITED | os.WNOWAIT)
    open(sys.argv[1] + ".tmp", "w").write(f"[{os.getpid()}, {dead}]")
    os.rename(sys.argv[1] + ".tmp", sys.argv[1])
    time.sleep(600)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
"""
SUPERVISOR = """
import asyncio, json, sys
from pathlib import Path
import psutil
from glm5_service.engine.process import EngineProcess, adopt_orphans
adopt_orphans()
engine = EngineProcess([sys.executable, "-c", sys.argv[1], sys.argv[2]], {}, print)
asyncio.run(engine.wait())
engine.sweep()
print([psutil.pid_exists(pid) for pid in json.loads(Path(sys.argv[2]).read_text())])
"""


def test_a_worker_and_the_dead_child_it_never_reaped_are_gone(tmp_path: Path) -> None:
    """A process that ended before its parent becomes the supervisor's to reap only when that parent is killed."""
    told = tmp_path / "pids.json"
    command = [sys.executable, "-c", SUPERVISOR, ENGINE, str(told)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert output.splitlines()[-1] == "[False, False]"
