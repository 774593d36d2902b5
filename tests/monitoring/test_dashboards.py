"""The boards as files: made by the code, whole in the typed models, with all that a reader needs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from charts.dashboards.__main__ import FOLDER, main, text_of
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from tests.support.boards import BOARDS, FILES, panels

EVERY_PANEL = [(board, panel) for board in BOARDS for panel in panels(board)]
IDS = [f"{board} / {panel['title']}" for board, panel in EVERY_PANEL]


def test_committed_boards_are_what_the_code_makes(capsys: pytest.CaptureFixture[str]) -> None:
    """The four files are those that `make dashboards` writes."""
    assert (main(["--check"]), capsys.readouterr().err) == (0, "")
    assert set(BOARDS) == {"overview", "attention", "startup", "engine"}


@pytest.mark.parametrize("name", list(BOARDS))
def test_round_trip(name: str) -> None:
    """Read into the typed models and written again, a board is the same text."""
    register_default_plugins()
    text = (FOLDER / f"{name}.json").read_text()
    assert text_of(Dashboard.from_json(json.loads(text))) == text


@pytest.mark.parametrize("name", list(BOARDS))
def test_board_can_be_imported_anywhere(name: str) -> None:
    """No data source of our own, no id, variables in the order they depend on each other, restarts marked, linked."""
    board = BOARDS[name]
    assert [variable["name"] for variable in board["templating"]["list"]] == [
        "datasource",
        "namespace",
        "release",
        "pod",
    ]
    assert "id" not in board or board["id"] is None
    assert board["uid"] == f"glm5-{name}"
    assert [annotation["name"] for annotation in board["annotations"]["list"]] == ["Restarts"]
    assert board["links"][0]["tags"] == ["glm5"] == board["tags"]
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


@pytest.mark.parametrize(("board", "panel"), EVERY_PANEL, ids=IDS)
def test_panel_explains_itself(board: str, panel: dict[str, Any]) -> None:
    """A panel has a title, a unit, a description of what a bad value means, its queries the board's data source."""
    source = {"type": "prometheus", "uid": "${datasource}"}
    assert panel["title"]
    assert len(panel["description"]) > 40
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert [panel["datasource"], *(target["datasource"] for target in panel["targets"])] == [source] * (
        1 + len(panel["targets"])
    )
    assert all(target["legendFormat"] for target in panel["targets"]) or panel["type"] == "table"


@pytest.mark.parametrize("name", list(BOARDS))
def test_panels_do_not_overlap(name: str) -> None:
    """Every place on the grid of 24 columns belongs to one panel at most, and rows of panels are full."""
    taken: dict[tuple[int, int], int] = {}
    for panel in BOARDS[name]["panels"]:
        at = panel["gridPos"]
        for cell in (
            (x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])
        ):
            assert cell not in taken
            assert cell[0] < 24
            taken[cell] = panel["id"]
    starts = {panel["gridPos"]["y"] for panel in panels(name)}
    assert all(sum((x, y) in taken for x in range(24)) == 24 for y in starts)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_board_fits_a_config_map(path: Any) -> None:
    """Far below the 1 MiB of an object, and below the 256 KiB that `kubectl apply` keeps as an annotation."""
    assert path.stat().st_size < 200_000
