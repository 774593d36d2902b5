"""One all-reduce over all ranks, in processes that can be killed: NCCL may hang where nothing interrupts it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass

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
    """How it went; `error` is None if every rank got the right sum."""

    seconds: float
    error: str | None


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
    for rank, process in enumerate(running):
        try:
            _, errors = process.communicate(timeout=max(timeout - (time.monotonic() - started), 0.01))
        except subprocess.TimeoutExpired:
            return Outcome(time.monotonic() - started, f"rank {rank} did not end in {timeout:g} s")
        if process.returncode:
            last = (errors.strip().splitlines() or ["no output"])[-1]
            return Outcome(time.monotonic() - started, f"rank {rank} ended with {process.returncode}: {last}")
    return Outcome(time.monotonic() - started, None)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
