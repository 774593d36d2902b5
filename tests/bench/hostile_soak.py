"""Honest streams beside all hostile clients, for half an hour: python -m tests.bench.hostile_soak FILE [SECONDS [LOG]].

The engine is the real one on CPU with the demo model, under a memory limit; everything is on loopback. Judges what is
lost, restarts, probes, and the API server's memory against the honest streams alone.
"""

from __future__ import annotations

import json
import random
import re
import resource
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil

from glm5_service.rundir import write_text
from tests.bench.hostile_clients import MEMORY_BYTES, MODEL, conditions
from tests.support.hostile import INPUTS, SLOW_INPUTS, Client
from tests.support.load import Load
from tests.support.serving import Serving, start_serving

HONEST, HOSTILE = 32, 4
ALONE_SECONDS = 20.0
# so short that some of the grammars are ended at it: the demo model has few tokens
GRAMMAR_SECONDS = 0.2
SETTINGS = (
    "engine.max_model_len=2048",
    "engine.max_num_seqs=64",
    "health.canary_idle_seconds=15",
    f"api.grammar_seconds={GRAMMAR_SECONDS}",
)


class Watch:
    """What probes say and what the API server's memory is, once a second until `stop`."""

    def __init__(self, serving: Serving) -> None:
        self._serving, self._stopped = serving, threading.Event()
        self._process = psutil.Process(serving.status()["pid"])
        self.probes: Counter[str] = Counter()
        self.peak_bytes, self.longest_health = 0, 0.0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with httpx.Client(trust_env=False, verify=False, timeout=60) as client:
            while not self._stopped.wait(1.0):
                for name in ("readyz", "livez"):
                    self.probes[f"{name} {self._serving.probe(name)[0]}"] += 1
                started = time.perf_counter()
                try:
                    self.probes[f"health {client.get(f'{self._serving.api}/health').status_code}"] += 1
                except httpx.HTTPError as error:
                    self.probes[f"health {type(error).__name__}"] += 1
                self.longest_health = max(self.longest_health, time.perf_counter() - started)
                self.peak_bytes = max(self.peak_bytes, self._process.memory_info().rss)

    def figures(self, alone: Watch) -> dict[str, Any]:
        """Memory and answers of the API server, against those without hostile clients."""
        return {
            "peak_alone_bytes": alone.peak_bytes,
            "peak_bytes": self.peak_bytes,
            "ratio": round(self.peak_bytes / alone.peak_bytes, 3),
            "longest_health_alone_seconds": round(alone.longest_health, 3),
            "longest_health_seconds": round(self.longest_health, 3),
        }

    def grammars(self) -> dict[str, float]:
        """What came of the grammars, by result."""
        url, headers = f"{self._serving.api}/metrics", self._serving.internal()
        page = httpx.get(url, headers=headers, timeout=60, trust_env=False, verify=False).text
        found = re.findall(r'glm5_grammar_compilations_total\{result="(\w+)"\} (\S+)', page)
        return {result: float(count) for result, count in found}

    def stop(self) -> None:
        """End it."""
        self._stopped.set()
        self._thread.join()


def _attack(port: int, until: float, seed: int, told: Counter[str]) -> None:
    clients: dict[str, Client] = INPUTS | SLOW_INPUTS
    order = random.Random(seed)
    while time.monotonic() < until:
        name = order.choice(list(clients))
        try:
            told[f"{name}: {clients[name](port)}"] += 1
        except OSError as error:
            told[f"{name}: {type(error).__name__}"] += 1


def soak(serving: Serving, seconds: float) -> Iterator[dict[str, Any]]:
    """The honest streams alone for a while, then with the hostile clients; the figures so far, once a minute."""
    told: Counter[str] = Counter()
    pid = serving.status()["pid"]
    with Load(serving.api, users=HONEST) as load:
        alone = Watch(serving)
        time.sleep(ALONE_SECONDS)
        alone.stop()
        before, watch, started = load.finished, Watch(serving), time.monotonic()
        until = started + seconds
        threads = [
            threading.Thread(target=_attack, args=(serving.port, until, n, told)) for n in range(HOSTILE)
        ]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            threads[0].join(60.0)
            for thread in threads if time.monotonic() > until else ():
                thread.join()
            yield {
                "seconds": round(time.monotonic() - started),
                "honest": {"streams": HONEST, "finished": load.finished - before, "lost": list(load.errors)},
                "hostile": {"clients": HOSTILE, "told": dict(sorted(told.copy().items()))},
                "restarts": int(serving.status().get("pid") != pid),
                "api_server": watch.figures(alone),
                "probes": dict(sorted(watch.probes.copy().items())),
                "grammars": watch.grammars(),
                "gate": serving.gate(),
            }
        watch.stop()


def main(path: Path, seconds: float = 1800.0, log: Path | None = None) -> None:
    """Start the engine, soak, write the file."""
    # the engine's processes inherit it
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    with tempfile.TemporaryDirectory() as folder:
        serving = start_serving(MODEL, Path(folder), *SETTINGS)
        try:
            serving.until_ready()
            for figures in soak(serving, seconds):
                write_text(path, json.dumps({**conditions(), **figures}, indent=1) + "\n")
        finally:
            if log:
                log.write_text(serving.log())
            serving.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(float, sys.argv[2:3]), *map(Path, sys.argv[3:4]))
