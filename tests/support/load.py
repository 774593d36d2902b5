"""User load on a running engine, and how fast its probes answer meanwhile.

Latencies are measured in a process of its own, `python -m tests.support.load URL SECONDS`, which the load does not slow.
"""

from __future__ import annotations

import http.client
import json
import statistics
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.support.glm5_command import PATIENCE_SECONDS


@dataclass
class Load:
    """`users` clients that stream completions one after the other until `stop`; use as a context manager."""

    url: str
    users: int
    max_tokens: int = 64
    finished: int = 0
    errors: list[str] = field(default_factory=list)
    _stopped: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> Load:
        self._threads = [threading.Thread(target=self._user, args=(number,)) for number in range(self.users)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def _user(self, number: int) -> None:
        body = {"model": "glm-5", "max_tokens": self.max_tokens, "stream": True, "ignore_eos": True}
        with httpx.Client(timeout=300, trust_env=False, verify=False) as client:
            turn = 0
            while not self._stopped.is_set():
                prompt = f"user {number} asks question {turn} " * 8
                try:
                    with client.stream(
                        "POST", f"{self.url}/v1/completions", json={**body, "prompt": prompt}
                    ) as answer:
                        end = b""
                        for part in answer.iter_raw():
                            end = (end + part)[-200:]
                        # a stream may also end with an error after its status
                        if answer.status_code != 200 or b"[DONE]" not in end:
                            self.errors.append(f"{answer.status_code} {end!r}")
                except httpx.HTTPError as error:
                    self.errors.append(repr(error))
                self.finished += 1
                turn += 1


def latency(url: str, seconds: float) -> dict[str, Any]:
    """Milliseconds that GETs of `url` take, measured for so many seconds."""
    argv = [sys.executable, "-m", "tests.support.load", url, str(seconds)]
    done = subprocess.run(argv, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True)
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def _measure(url: str, seconds: float, every: float = 0.05) -> dict[str, Any]:
    """Each GET on a connection of its own, as a kubelet makes it."""
    taken, statuses = [], set()
    address = httpx.URL(url)
    deadline = time.monotonic() + seconds
    # quantiles take two
    while time.monotonic() < deadline or len(taken) < 2:
        started = time.perf_counter()
        connection = http.client.HTTPConnection(address.host, address.port, timeout=PATIENCE_SECONDS)
        connection.request("GET", address.path)
        answer = connection.getresponse()
        answer.read()
        statuses.add(answer.status)
        taken.append((time.perf_counter() - started) * 1000)
        connection.close()
        time.sleep(every)
    cuts = statistics.quantiles(taken, n=100)
    return {
        "requests": len(taken),
        "p50_ms": round(cuts[49], 2),
        "p99_ms": round(cuts[98], 2),
        "max_ms": round(max(taken), 2),
        "statuses": sorted(statuses),
    }


if __name__ == "__main__":
    print(json.dumps(_measure(sys.argv[1], float(sys.argv[2]))))
