"""Draws a board as Grafana lays it out, from the results of its queries; what a reader may expect, without a Grafana."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec

from tests.support.boards import BOARDS
from tests.support.prometheus import Series
from tests.support.promql import legend_of

# the series of each query of each panel, by the panel's id
Results = dict[int, list[list[Series]]]
NAMED_COLORS = {"green": "#56a64b", "yellow": "#e0b400", "red": "#e02f44", "blue": "#3274d9"}
LINES_IN_A_LEGEND = 6
SUFFIXES = {
    "s": "s",
    "percentunit": "%",
    "watt": "W",
    "celsius": "°C",
    "reqps": "/s",
    "bytes": "B",
    "decbytes": "B",
    "Bps": "B/s",
}


def draw(board: str, results: Results, start: float, path: Path) -> None:
    """One PNG of the whole board; times count from `start`."""
    mpl.rcParams.update(
        {"font.size": 6.5, "axes.titlesize": 7.5, "axes.titlelocation": "left", "axes.linewidth": 0.5}
    )
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in BOARDS[board]["panels"])
    figure = Figure(figsize=(13, rows * 0.25), layout="none")
    grid = GridSpec(rows, 24, figure, left=0.02, right=0.985, top=0.985, bottom=0.02, wspace=2.2, hspace=2.6)
    for panel in BOARDS[board]["panels"]:
        at = panel["gridPos"]
        axes = figure.add_subplot(grid[at["y"] : at["y"] + at["h"], at["x"] : at["x"] + at["w"]])
        if panel["type"] == "row":
            axes.axis("off")
            axes.text(0, 0.2, panel["title"], fontsize=9, fontweight="bold")
            continue
        axes.set_title(panel["title"])
        named = _named(panel, results[panel["id"]], start)
        _DRAWN[panel["type"]](axes, panel, named)
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=75, pil_kwargs={"optimize": True})


Named = list[tuple[str, dict[str, str], list[tuple[float, float]]]]


def _named(panel: dict[str, Any], results: list[list[Series]], start: float) -> Named:
    return [
        (legend_of(target["legendFormat"], labels), labels, [(at - start, value) for at, value in points])
        for target, series in zip(panel["targets"], results, strict=True)
        for labels, points in series
    ]


def text_of(value: float, unit: str) -> str:
    """A value in its unit, short."""
    if unit == "percentunit":
        return f"{value * 100:.3g} %"
    if unit in {"bytes", "decbytes", "Bps"}:
        power = next((p for p in (12, 9, 6, 3) if abs(value) >= 10**p), 0)
        return f"{value / 10**power:.3g} { {12: 'T', 9: 'G', 6: 'M', 3: 'k', 0: ''}[power] }{SUFFIXES[unit]}"
    if unit == "s" and 0 < abs(value) < 1:
        return f"{value * 1000:.3g} ms" if abs(value) >= 1e-3 else f"{value * 1e6:.3g} µs"
    return f"{value:.4g} {SUFFIXES.get(unit, '')}".strip()


def _color(panel: dict[str, Any], value: float) -> tuple[str, str]:
    """Text and colour of a value, by the panel's mappings and thresholds."""
    defaults = panel["fieldConfig"]["defaults"]
    for mapping in defaults.get("mappings", []):
        if (found := mapping["options"].get(f"{value:g}")) is not None:
            return found["text"], NAMED_COLORS.get(found["color"], found["color"])
    color = "blue"
    for step in defaults["thresholds"]["steps"]:
        if step["value"] is None or value >= step["value"]:
            color = step["color"]
    return text_of(value, defaults["unit"]), NAMED_COLORS.get(color, color)


def _lines(axes: Axes, panel: dict[str, Any], named: Named) -> None:
    unit = panel["fieldConfig"]["defaults"]["unit"]
    for name, _, points in named:
        label = f"{name}: {text_of(points[-1][1], unit)}"
        axes.plot(*zip(*points, strict=True), linewidth=0.9, label=label)
    axes.set_ylim(bottom=0)
    axes.grid(linewidth=0.3)
    axes.tick_params(length=2, pad=1)
    axes.yaxis.set_major_formatter(lambda value, _: text_of(value, unit))
    if named:
        handles, labels = axes.get_legend_handles_labels()
        shown = slice(0, LINES_IN_A_LEGEND)
        axes.legend(
            handles[shown], labels[shown], fontsize=5.5, loc="upper left", framealpha=0.6, borderpad=0.2
        )


def _figures(axes: Axes, panel: dict[str, Any], named: Named) -> None:
    axes.axis("off")
    by_name = panel["options"].get("textMode") == "name"
    shown = {
        name if by_name else index: (name, points[-1][1]) for index, (name, _, points) in enumerate(named)
    }
    for index, (name, value) in enumerate(shown.values()):
        text, color = _color(panel, value)
        text = name if by_name else f"{text}\n{name}" if len(panel["targets"]) > 1 else text
        left = index / len(shown)
        axes.add_patch(
            mpl.patches.Rectangle((left, 0), 0.97 / len(shown), 1, color=color, transform=axes.transAxes)
        )
        size = min(13, 60 / max(map(len, text.split("\n"))) * 2.2 / len(shown) ** 0.5)
        axes.text(
            left + 0.48 / len(shown),
            0.5,
            text,
            ha="center",
            va="center",
            color="white",
            fontsize=size,
            transform=axes.transAxes,
        )


def _bars(axes: Axes, panel: dict[str, Any], named: Named) -> None:
    unit = panel["fieldConfig"]["defaults"]["unit"]
    names, values = [name for name, _, _ in named], [points[-1][1] for _, _, points in named]
    bars = axes.barh(names, values, color=NAMED_COLORS["blue"])
    axes.bar_label(bars, [text_of(value, unit) for value in values], padding=2, fontsize=6)
    axes.invert_yaxis()
    axes.margins(x=0.25)
    axes.xaxis.set_visible(False)
    axes.tick_params(length=0, pad=1)


def _timeline(axes: Axes, panel: dict[str, Any], named: Named) -> None:
    for row, (_, _, points) in enumerate(named):
        said = ""
        step = min((b[0] - a[0] for a, b in pairwise(points)), default=1.0)
        for at, value in points:
            text, color = _color(panel, value)
            axes.broken_barh([(at, step)], (row - 0.4, 0.8), color=color, linewidth=0)
            if text != said:
                axes.text(at, row, f" {text}", va="center", fontsize=5.5, clip_on=True)
            said = text
    axes.set_yticks(range(len(named)), [name for name, _, _ in named])
    axes.tick_params(length=2, pad=1)
    axes.invert_yaxis()


def _table(axes: Axes, panel: dict[str, Any], named: Named) -> None:
    axes.axis("off")
    columns = list(panel["transformations"][0]["options"]["indexByName"])
    cells = [[labels.get(column, "")[-26:] for column in columns] for _, labels, _ in named]
    if cells:
        widths = [max(len(row[i]) for row in [columns, *cells]) + 1 for i in range(len(columns))]
        drawn = axes.table(
            cells,
            colLabels=columns,
            loc="upper center",
            cellLoc="left",
            colWidths=[w / sum(widths) for w in widths],
        )
        drawn.auto_set_font_size(False)
        drawn.set_fontsize(min(6, 75 * panel["gridPos"]["w"] / 14 / sum(widths) * 6))


_DRAWN = {
    "timeseries": _lines,
    "stat": _figures,
    "bargauge": _bars,
    "state-timeline": _timeline,
    "table": _table,
}
