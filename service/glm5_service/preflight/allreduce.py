"""One all-reduce over all ranks, in processes that can be killed: NCCL may hang where nothing interrupts it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from queue import Empty, SimpleQueue

# each rank adds 16 MiB of ones, enough for NCCL to leave its small-message path
PROGRAM = """
import os, sys
import torch, torch.distributed as dist
rank, ranks, backend = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
if backend == "nccl":
    torch.cuda.set_device(device)
dist.init_process_group(backend, rank=rank, world_size=ranks)
ones = torch.ones(4 * 1024 * 1024, device=device)
dist.all_reduce(ones)
if not bool((ones == ranks).all()):
    sys.exit(f"the sum over {ranks} ranks is wrong: {ones[0].item()}")
if backend == "nccl":
    torch.cuda.synchronize()
os._exit(0)
"""


@dataclass(frozen=True)
class Outcome:
    """How it went; `error` is None if every rank got the right sum, `is_hang` says that none failed and some went on."""

    seconds: float
    error: str | None
    is_hang: bool = False


def run(ranks: int, backend: str, timeout: float, program: str = PROGRAM) -> Outcome:
    """All-reduce over `ranks` processes; what has not ended after `timeout` seconds is killed."""
    environment = {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
        "OMP_NUM_THREADS": "1",
    }
    started = time.monotonic()
    running = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(rank), str(ranks), backend],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        for rank in range(ranks)
    ]
    try:
        return _judge(running, started, timeout)
    finally:
        for process in running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _judge(running: list[subprocess.Popen[str]], started: float, timeout: float) -> Outcome:
    """The first rank that fails is the cause; those that wait for it are not."""
    ends: SimpleQueue[tuple[int, int, str]] = SimpleQueue()
    for rank, process in enumerate(running):
        threading.Thread(target=_report, args=(rank, process, ends), daemon=True).start()
    left = set(range(len(running)))
    while left:
        try:
            rank, code, errors = ends.get(timeout=max(timeout - (time.monotonic() - started), 0.01))
        except Empty:
            names = ", ".join(map(str, sorted(left)))
            who = f"rank {names}" if len(left) == 1 else f"ranks {names}"
            return Outcome(time.monotonic() - started, f"{who} did not end in {timeout:g} s", is_hang=True)
        if code:
            last = (errors.strip().splitlines() or ["no output"])[-1]
            return Outcome(time.monotonic() - started, f"rank {rank} ended with {code}: {last}")
        left.discard(rank)
    return Outcome(time.monotonic() - started, None)


def _report(rank: int, process: subprocess.Popen[str], ends: SimpleQueue[tuple[int, int, str]]) -> None:
    _, errors = process.communicate()
    ends.put((rank, process.returncode, errors))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
