"""Marks kernel compilations under way as `compiles/PID.json` in the run directory, so that nobody takes one for a hang.

The file is there while this process compiles; the supervisor counts it as progress up to a cap. Without a run directory
nothing is written, and a mark that cannot be written stops no kernel.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from glm5_vllm import envs
from glm5_vllm.files import try_write

_running: dict[str, float] = {}
_lock = threading.Lock()


@contextmanager
def compiling(kernel: str) -> Iterator[None]:
    """Mark the compilation of `kernel` for as long as the block runs."""
    begin(kernel)
    try:
        yield
    finally:
        end(kernel)


def begin(kernel: str) -> None:
    """A compilation begins; of several, the mark names the oldest."""
    with _lock:
        _running.setdefault(kernel, time.time())
        _write()


def end(kernel: str) -> None:
    """A compilation ended."""
    with _lock:
        _running.pop(kernel, None)
        _write()


def watch_triton() -> None:
    """Mark every Triton compilation of this process from now on; a second call changes nothing.

    Triton calls the one hook before it compiles and the other after; hooks that are already there stay in force.
    """
    from triton import knobs

    before, after = knobs.runtime.jit_cache_hook, knobs.runtime.jit_post_compile_hook
    if getattr(before, "marks_compilations", False):
        return

    def on_begin(**facts: Any) -> bool | None:
        begin(facts["fn"].name)
        return None if before is None else before(**facts)

    def on_end(**facts: Any) -> bool | None:
        end(facts["fn"].name)
        return None if after is None else after(**facts)

    on_begin.marks_compilations = True  # type: ignore[attr-defined]
    knobs.runtime.jit_cache_hook, knobs.runtime.jit_post_compile_hook = on_begin, on_end


def _write() -> None:
    run_dir = envs.run_dir()
    if run_dir is None:
        return
    path = run_dir / "compiles" / f"{os.getpid()}.json"
    if not _running:
        # on a volume that went read-only the mark stays, and its age says that it is stale
        with suppress(OSError):
            path.unlink(missing_ok=True)
        return
    kernel, since = min(_running.items(), key=lambda item: item[1])
    try_write(path, json.dumps({"kernel": kernel, "since": since}).encode())
