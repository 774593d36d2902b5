"""The chart's rules, rendered by helm or, where none is needed, filled in with the defaults of values.yaml; promtool."""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.support.chart import CHART, objects

RULES = sorted((CHART / "files" / "rules").glob("*.yaml"))
RUNBOOKS = CHART / "docs" / "runbooks.md"
Group = dict[str, Any]


@cache
def _rendered(overrides: str) -> list[Group]:
    values = {"prometheusRule": {"enabled": True, **yaml.safe_load(overrides)}}
    found = [item for item in objects(values=values) if item["kind"] == "PrometheusRule"]
    return [group for item in found for group in item["spec"]["groups"]]


def rendered(**overrides: Any) -> list[Group]:
    """Groups as helm renders them, with further values of prometheusRule."""
    return _rendered(yaml.safe_dump(overrides))


@cache
def filled_in() -> list[Group]:
    """Groups with plausible parameters, without helm: for what concerns names and form only."""
    rule = yaml.safe_load((CHART / "values.yaml").read_text())["prometheusRule"]
    parameters = {
        "namespace": "llm", "release": "glm5", "fullname": "glm5", "selector": 'namespace="llm",release="glm5"',
        "runbooks": rule["runbooks"], "startupSeconds": 2403, "sidecarDownFor": "5m", "restartsWithin": "120m",
        "stagingJobs": "glm5-stage-[0-9a-f]{8}", "errorBudget": 0.05, **rule["slo"], **rule["thresholds"],
    }  # fmt: skip
    texts = [
        re.sub(r"\$\{(\w+)\}", lambda found: str(parameters[found[1]]), path.read_text()) for path in RULES
    ]
    return [group for text in texts for group in yaml.safe_load(text)["groups"]]


def alerts(groups: list[Group]) -> dict[str, list[dict[str, Any]]]:
    """Alert rules by name; some names have several."""
    found: dict[str, list[dict[str, Any]]] = {}
    for group in groups:
        for rule in group["rules"]:
            if "alert" in rule:
                found.setdefault(rule["alert"], []).append(rule)
    return found


def write_rules(groups: list[Group], path: Path) -> None:
    """A rule file for Prometheus."""
    path.write_text(yaml.safe_dump({"groups": groups}, width=200, sort_keys=False))


def promtool(*argv: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run promtool; never raises for its exit code."""
    return subprocess.run(["promtool", *argv], cwd=cwd, capture_output=True, text=True, check=False)
