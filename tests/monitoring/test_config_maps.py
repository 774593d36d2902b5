"""The chart's objects for dashboards and scraping, as the cluster gets them."""

from __future__ import annotations

import json

import pytest

from tests.support.boards import BOARDS, FILES
from tests.support.chart import objects

pytestmark = pytest.mark.chart


@pytest.mark.parametrize("name", ["helm3", "helm4"])
def test_config_maps_hold_what_the_files_hold(name: str) -> None:
    """Each board arrives byte for byte, {{ }} of its legends included, with the label Grafana's sidecar looks for."""
    items = objects(values={"dashboards": {"enabled": True}}, name=name)
    found = {
        item["metadata"]["name"]: item
        for item in items
        if item["kind"] == "ConfigMap" and "-dashboard-" in item["metadata"]["name"]
    }
    assert {path.stem: path.read_text() for path in FILES} == {
        name.removeprefix("glm5-dashboard-"): item["data"][f"{name.removeprefix('glm5-dashboard-')}.json"]
        for name, item in found.items()
    }
    assert all(item["metadata"]["labels"]["grafana_dashboard"] == "1" for item in found.values())
    # the API server takes objects up to 1 MiB, `kubectl apply` annotations up to 256 KiB
    assert max(len(json.dumps(item)) for item in found.values()) < 262_144


@pytest.mark.parametrize(
    ("monitor", "field"), [("podMonitor", "podMetricsEndpoints"), ("serviceMonitor", "endpoints")]
)
def test_monitors_set_the_label_that_boards_and_rules_select_by(monitor: str, field: str) -> None:
    """Both monitors give every series the release, which the operator does not."""
    items = objects(values={monitor: {"enabled": True}})
    spec = next(item["spec"] for item in items if item["kind"].lower() == monitor.lower())
    relabelings = spec[field][0]["relabelings"]
    assert relabelings == [
        {"sourceLabels": ["__meta_kubernetes_pod_label_app_kubernetes_io_instance"], "targetLabel": "release"}
    ]


def test_boards_are_not_carried_twice() -> None:
    """The files' names are the boards'."""
    assert {path.stem for path in FILES} == set(BOARDS)
