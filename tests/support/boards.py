"""The committed boards as files: their panels, queries and variables; nothing of the code that makes them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from typing import Any

from tests.support.chart import CHART

FILES = sorted((CHART / "files" / "dashboards").glob("*.json"))
BOARDS: dict[str, dict[str, Any]] = {path.stem: json.loads(path.read_text()) for path in FILES}


@dataclass(frozen=True)
class Target:
    """One query of a panel."""

    board: str
    panel: str
    unit: str
    expr: str
    legend: str
    instant: bool

    def __str__(self) -> str:
        return f"{self.board} / {self.panel} / {self.legend or 'table'}"


def panels(board: str) -> list[dict[str, Any]]:
    """Every panel that is no headline."""
    return [panel for panel in BOARDS[board]["panels"] if panel["type"] != "row"]


@cache
def targets() -> list[Target]:
    """Every query of every board."""
    return [
        Target(
            board, panel["title"], panel["fieldConfig"]["defaults"].get("unit", ""),
            target["expr"], target["legendFormat"], target["instant"],
        )
        for board in BOARDS for panel in panels(board) for target in panel["targets"]
    ]  # fmt: skip


def filled(expr: str, *, interval: str = "1m", **variables: str) -> str:
    """A query as Grafana sends it, with a value for each of the board's variables; `.*` for those not given."""
    expr = expr.replace("$__rate_interval", interval)
    for name in ("namespace", "release", "pod"):
        expr = expr.replace(f"${name}", variables.get(name, ".*"))
    return expr
