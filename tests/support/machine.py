"""What a measurement ran on, and how much a process of it used."""

from __future__ import annotations

import os
import platform
import resource
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


def hardware() -> str:
    """Cores, processor, memory and kernel in one line."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    return f"{len(os.sched_getaffinity(0))} cores ({cpu}), {memory:.0f} GiB, Linux {platform.release()}"


@dataclass(frozen=True)
class Usage:
    """What a command took."""

    seconds: float
    cpu_seconds: float
    peak_mib: float
    returncode: int
    stderr: str


def measured(command: list[str], environment: dict[str, str] | None = None) -> Usage:
    """Run a command to its end; memory is its own high-water mark, CPU includes its children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begun, peak_kib = time.monotonic(), 0
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stderr is not None
    while process.poll() is None:
        # getrusage would count this process's memory before exec
        with suppress(OSError, StopIteration):
            status = Path(f"/proc/{process.pid}/status").read_text().splitlines()
            peak_kib = max(
                peak_kib, int(next(line for line in status if line.startswith("VmHWM")).split()[1])
            )
        time.sleep(0.05)
    seconds = time.monotonic() - begun
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Usage(seconds, cpu, peak_kib / 1024, process.returncode, process.stderr.read())
