"""Finds the engine's processes in /proc: vLLM's own by their titles, and running compilers. Decides nothing."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass

import psutil

# programs that Triton, inductor, DeepGEMM and FlashInfer run to build a kernel
COMPILERS = frozenset(
    {
        "ptxas",
        "nvcc",
        "cicc",
        "cudafe++",
        "nvlink",
        "fatbinary",
        "ninja",
        "cc1plus",
        "cc1",
        "g++",
        "gcc",
        "clang",
    }
)
TITLE = "VLLM::"


@dataclass(frozen=True)
class ProcessView:
    """Living processes of the engine's session."""

    pids: frozenset[int] = frozenset()
    titled: frozenset[tuple[int, str]] = frozenset()
    compilers: tuple[str, ...] = ()


def look(session: int) -> ProcessView:
    """Return the processes of a session now. Zombies count as dead."""
    pids, compilers = set(), set()
    titles: dict[int, tuple[str, int]] = {}
    for pid in psutil.pids():
        with contextlib.suppress(OSError, psutil.Error):
            if os.getsid(pid) != session:
                continue
            process = psutil.Process(pid)
            if process.status() == psutil.STATUS_ZOMBIE:
                continue
            pids.add(pid)
            name = process.name()
            if name in COMPILERS:
                compilers.add(name)
            elif name.startswith(TITLE):
                title = (process.cmdline() or [name])[0]
                titles[pid] = (title.removeprefix(TITLE).strip(), process.ppid())
    # between fork and exec a compiler has its parent's title. It is not a process of the engine
    titled = {
        (pid, title) for pid, (title, parent) in titles.items() if titles.get(parent, ("",))[0] != title
    }
    return ProcessView(frozenset(pids), frozenset(titled), tuple(sorted(compilers)))
