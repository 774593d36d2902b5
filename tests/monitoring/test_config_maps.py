"""The chart's objects for dashboards and scraping, as the cluster gets them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.boards import BOARDS, FILES
from tests.support.chart import objects

pytestmark = pytest.mark.chart


def boards_of(release: str, **how: Any) -> dict[str, Any]:
    """ConfigMaps of the boards of a release by the name of the board's file."""
    items = objects(values={"dashboards": {"enabled": True}}, release=release, **how)
    found = [
        item for item in items if item["kind"] == "ConfigMap" and "-dashboard-" in item["metadata"]["name"]
    ]
    return {item["metadata"]["name"].partition("-dashboard-")[2]: item for item in found}


@pytest.mark.parametrize("name", ["helm3", "helm4"])
def test_config_maps_hold_what_the_files_hold(name: str) -> None:
    """Each board arrives as its file, {{ }} of its legends included; only title and uid tell the release."""
    found = boards_of("glm5", name=name)
    boards = {board: json.loads(item["data"][f"llm-glm5-{board}.json"]) for board, item in found.items()}
    files = {path.stem: json.loads(path.read_text()) for path in FILES}
    assert {board: content | {"title": "", "uid": ""} for board, content in boards.items()} == {
        board: content | {"title": "", "uid": ""} for board, content in files.items()
    }
    assert all(boards[board]["title"] == f"{files[board]['title']} / llm/glm5" for board in files)
    # Grafana takes uids of up to 40 characters
    assert all(boards[board]["uid"].startswith(files[board]["uid"]) for board in files)
    assert max(len(board["uid"]) for board in boards.values()) <= 40
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


def test_boards_of_two_releases_stand_side_by_side() -> None:
    """No key, uid or title of one release's boards is one of another's, since Grafana would keep the last of them."""
    one, other = (
        {
            (key, json.loads(text)["uid"], json.loads(text)["title"])
            for item in boards.values()
            for key, text in item["data"].items()
        }
        for boards in (boards_of("glm5"), boards_of("glm5-next"))
    )
    for column in range(3):
        assert {row[column] for row in one} & {row[column] for row in other} == set()
        assert len({row[column] for row in one}) == len(one) == len(FILES)
