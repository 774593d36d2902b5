"""The engine's session: whom it consists of while it runs, and that nothing is left of it after its end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from glm5_service.watch.processes import look

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
from glm5_service.engine.child import EngineProcess, adopt_orphans
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


# a worker with a child that has not yet become the compiler it is started for
FORKING = """
import os, sys
pid = os.fork()
if pid:
    print(pid, flush=True)
sys.stdin.read()
"""
WORKER = "import ctypes; ctypes.CDLL(None).prctl(15, b'VLLM::Worker');"


def test_a_child_that_is_about_to_compile_is_no_worker() -> None:
    """Between fork and exec a child has its parent's title; its end must not look like a worker that is lost."""
    command = ["VLLM::Worker", "-c", WORKER + FORKING]
    with subprocess.Popen(
        command,
        executable=sys.executable,
        start_new_session=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as worker:
        assert worker.stdout is not None
        child = int(worker.stdout.readline())
        seen = look(os.getsid(worker.pid))
        worker.communicate(b"")
    assert seen.pids == {worker.pid, child}
    assert seen.titled == {(worker.pid, "Worker")}
