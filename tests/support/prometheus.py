"""A real Prometheus and Alertmanager for tests, and a small server for recorded pages and for alerts that arrive."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.support.glm5_command import PATIENCE_SECONDS
from tests.support.serving import free_port

Series = tuple[dict[str, str], list[tuple[float, float]]]


class Post:
    """Serves texts by their path, and keeps the alerts that are posted to /alerts."""

    def __init__(self, pages: dict[str, str]) -> None:
        self.alerts: list[dict[str, Any]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(pages.get(self.path, "").encode())

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.alerts += json.loads(body)["alerts"]
                self._answer(b"")

            def _answer(self, body: bytes) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        """Answer no more."""
        self._server.shutdown()
        self._server.server_close()


class Daemon:
    """A Prometheus or an Alertmanager; `stop` it."""

    def __init__(self, argv: list[str], folder: Path, address: str) -> None:
        self.address = address
        with (folder / f"{argv[0]}.log").open("w") as log:
            self._process = subprocess.Popen(argv, stdout=log, stderr=log, cwd=folder)
        until(self._is_ready, argv[0])

    def _is_ready(self) -> bool:
        try:
            return httpx.get(f"http://{self.address}/-/ready", timeout=5).status_code == 200
        except httpx.HTTPError:
            return False

    def get(self, path: str, **parameters: object) -> Any:
        """What its API answers."""
        answer = httpx.get(f"http://{self.address}/api/{path}", params=parameters, timeout=PATIENCE_SECONDS)  # type: ignore[arg-type]
        assert answer.status_code == 200, f"{parameters}: {answer.text[:500]}"
        return answer.json()

    def stop(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait()


class Prometheus(Daemon):
    """Scrapes, evaluates, and answers queries."""

    def value(self, expr: str) -> float | None:
        """The first sample of now, if there is one."""
        found = self.get("v1/query", query=expr)["data"]["result"]
        return float(found[0]["value"][1]) if found else None

    def range(self, expr: str, start: float, end: float, step: float) -> list[Series]:
        """Every series of a query with its points; values that are no number are left out."""
        found = self.get("v1/query_range", query=expr, start=start, end=end, step=step)["data"]["result"]
        series = [
            (one["metric"], [(at, float(value)) for at, value in one["values"] if value != "NaN"])
            for one in found
        ]
        return [one for one in series if one[1]]


def start_prometheus(
    folder: Path, jobs: list[dict[str, Any]], rules: Path | None = None, alertmanager: str | None = None
) -> Prometheus:
    """One that scrapes every second and evaluates `rules` every second; static targets only."""
    port = free_port()
    content: dict[str, Any] = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "scrape_configs": jobs,
    }
    if rules:
        content["rule_files"] = [str(rules)]
    if alertmanager:
        content["alerting"] = {"alertmanagers": [{"static_configs": [{"targets": [alertmanager]}]}]}
    (folder / "prometheus.yml").write_text(yaml.safe_dump(content))
    address = f"127.0.0.1:{port}"
    argv = [
        "prometheus",
        "--config.file=prometheus.yml",
        "--storage.tsdb.path=data",
        f"--web.listen-address={address}",
    ]
    return Prometheus(argv, folder, address)


def start_alertmanager(folder: Path, webhook: str) -> Daemon:
    """One that posts every alert to `webhook` at once."""
    content = {
        "route": {"receiver": "test", "group_by": ["..."], "group_wait": "1s", "group_interval": "1s"},
        "receivers": [{"name": "test", "webhook_configs": [{"url": webhook, "send_resolved": True}]}],
    }
    (folder / "alertmanager.yml").write_text(yaml.safe_dump(content))
    address = f"127.0.0.1:{free_port()}"
    argv = ["prometheus-alertmanager", "--config.file=alertmanager.yml", "--storage.path=alertmanager",
            f"--web.listen-address={address}", "--cluster.listen-address="]  # fmt: skip
    return Daemon(argv, folder, address)


def until(condition: Callable[[], object], what: str) -> None:
    """Wait for a condition; fails with `what` after PATIENCE_SECONDS."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"not within {PATIENCE_SECONDS:g} s: {what}"
        time.sleep(0.2)
