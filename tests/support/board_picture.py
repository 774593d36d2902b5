"""Draws a board as Grafana lays it out, from the results of its queries; what a reader may expect, without a Grafana."""

from __future__ import annotations

import io
from itertools import groupby
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from tests.support.boards import BOARDS
from tests.support.prometheus import Series
from tests.support.promql import legend_of

# the series of each query of each panel, by the panel's id
Results = dict[int, list[list[Series]]]
NAMED_COLORS = {"green": "#56a64b", "yellow": "#e0b400", "red": "#e02f44", "blue": "#3274d9"}
LINES_IN_A_LEGEND = 6
# pixels: a column and a row of the grid, and what tick labels take beside and below a panel
DPI, COLUMN, ROW = 80, 44, 24
MARGINS = {
    "timeseries": (48, 18),
    "bargauge": (110, 6),
    "state-timeline": (90, 18),
    "stat": (8, 8),
    "table": (6, 4),
}
STALE_SECONDS = 1.5
# part of a timeline that a word needs
WORD = 0.09
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


def draw(board: str, results: Results, start: float, now: float, path: Path) -> None:
    """One PNG of the whole board. Lines show everything, counted from `start`; figures, bars and tables show `now`."""
    mpl.rcParams.update({"font.size": 6.5, "axes.linewidth": 0.5})
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in BOARDS[board]["panels"])
    width, height = 24 * COLUMN, rows * ROW
    figure = Figure(figsize=(width / DPI, height / DPI), facecolor="#f4f5f5")
    for panel in BOARDS[board]["panels"]:
        at = panel["gridPos"]
        left, top = at["x"] * COLUMN + 2, at["y"] * ROW + 2
        right, bottom = (at["x"] + at["w"]) * COLUMN - 2, (at["y"] + at["h"]) * ROW - 2
        if panel["type"] == "row":
            figure.text(
                left / width, 1 - (bottom - 4) / height, panel["title"], fontsize=9, fontweight="bold"
            )
            continue
        box = (left / width, 1 - bottom / height, (right - left) / width, (bottom - top) / height)
        figure.add_artist(
            mpl.patches.Rectangle(box[:2], *box[2:], color="white", zorder=-2, transform=figure.transFigure)
        )
        figure.text((left + 5) / width, 1 - (top + 11) / height, panel["title"], fontsize=7.5)
        beside, below = MARGINS[panel["type"]]
        inner = (left + beside, bottom - below, right - 8, top + 19)
        axes = figure.add_axes(
            (
                inner[0] / width,
                1 - inner[1] / height,
                (inner[2] - inner[0]) / width,
                (inner[1] - inner[3]) / height,
            )
        )
        named = _named(panel, results[panel["id"]])
        if panel["type"] in ("stat", "bargauge", "table"):
            named = _at(now, named)
        if not named:
            axes.axis("off")
            axes.text(0.5, 0.5, "no data", ha="center", color="#808080", fontsize=9)
            continue
        _DRAWN[panel["type"]](
            axes, panel, [(name, labels, _since(start, points)) for name, labels, points in named]
        )
    path.parent.mkdir(exist_ok=True)
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=DPI)
    # flat colours: a palette is a third of the size and looks the same
    Image.open(drawn).convert("RGB").quantize(64, dither=Image.Dither.NONE).save(path, optimize=True)


Points = list[tuple[float, float]]
Named = list[tuple[str, dict[str, str], Points]]


def _named(panel: dict[str, Any], results: list[list[Series]]) -> Named:
    return [
        (legend_of(target["legendFormat"], labels), labels, points)
        for target, series in zip(panel["targets"], results, strict=True)
        for labels, points in series
    ]


def _at(now: float, named: Named) -> Named:
    """What was there at `now`; if nothing was, what was there last."""
    then = [(name, labels, [point for point in points if point[0] <= now]) for name, labels, points in named]
    fresh = [one for one in then if one[2] and one[2][-1][0] > now - STALE_SECONDS]
    return fresh or named


def _since(start: float, points: Points) -> Points:
    return [(at - start, value) for at, value in points]


def text_of(value: float, unit: str) -> str:
    """A value in its unit, short."""
    if unit == "percentunit":
        return f"{value * 100:.3g} %"
    if unit in {"bytes", "decbytes", "Bps"}:
        power = next((p for p in (12, 9, 6, 3) if abs(value) >= 10**p), 0)
        return f"{value / 10**power:.3g} { {12: 'T', 9: 'G', 6: 'M', 3: 'k', 0: ''}[power] }{SUFFIXES[unit]}"
    if unit == "s" and 0 < abs(value) < 1:
        return f"{value * 1000:.3g} ms" if abs(value) >= 1e-3 else f"{value * 1e6:.3g} µs"
    number = f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"
    return f"{number} {SUFFIXES.get(unit, '')}".strip()


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
    highest = max(value for _, _, points in named for _, value in points)
    axes.set_ylim(-0.02 * (highest or 1), (highest or 1) * 1.1)
    axes.grid(linewidth=0.3)
    axes.tick_params(length=2, pad=1)
    axes.yaxis.set_major_formatter(lambda value, _: text_of(value, unit))
    handles, texts = axes.get_legend_handles_labels()
    few = slice(0, LINES_IN_A_LEGEND)
    axes.legend(handles[few], texts[few], fontsize=5.5, loc="upper left", framealpha=0.6, borderpad=0.2)


def _figures(axes: Axes, panel: dict[str, Any], named: Named) -> None:
    axes.axis("off")
    by_name, many = panel["options"].get("textMode") == "name", len(panel["targets"]) > 1
    boxes = []
    for name, _, points in named:
        text, color = _color(panel, points[-1][1])
        boxes.append((name if by_name else f"{text}\n{name}" if many else text, color))
    boxes = list(dict.fromkeys(boxes))
    width = 1 / len(boxes)
    longest = max(len(line) for text, _ in boxes for line in text.split("\n"))
    size = min(13, panel["gridPos"]["w"] * COLUMN * width / longest * 1.2)
    for number, (text, color) in enumerate(boxes):
        left = number * width
        box = mpl.patches.Rectangle((left, 0), 0.98 * width, 1, color=color, transform=axes.transAxes)
        axes.add_patch(box)
        place = {"ha": "center", "va": "center", "transform": axes.transAxes}
        axes.text(left + 0.49 * width, 0.5, text, color="white", fontsize=size, **place)


def _bars(axes: Axes, panel: dict[str, Any], named: Named) -> None:
    unit = panel["fieldConfig"]["defaults"]["unit"]
    if panel["targets"][0]["expr"].startswith("sort("):
        named = sorted(named, key=lambda one: one[2][-1][1])
    names, values = [name for name, _, _ in named], [points[-1][1] for _, _, points in named]
    bars = axes.barh(names, values, color=NAMED_COLORS["blue"])
    axes.bar_label(bars, [text_of(value, unit) for value in values], padding=2, fontsize=6)
    axes.invert_yaxis()
    axes.margins(x=0.25)
    axes.xaxis.set_visible(False)
    axes.tick_params(length=0, pad=1)


def _timeline(axes: Axes, panel: dict[str, Any], named: Named) -> None:
    everything = [at for _, _, points in named for at, _ in points]
    span = max(everything) - min(everything)
    for row, (_, _, points) in enumerate(named):
        for value, group in groupby(points, key=lambda point: point[1]):
            times = [at for at, _ in group]
            text, color = _color(panel, value)
            axes.broken_barh(
                [(times[0], times[-1] - times[0] + 1)], (row - 0.4, 0.8), color=color, linewidth=0
            )
            if times[-1] - times[0] > WORD * span:
                axes.text(times[0], row, f" {text}", va="center", fontsize=5.5, clip_on=True)
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
        drawn.set_fontsize(min(6, panel["gridPos"]["w"] * COLUMN / sum(widths) * 1.5))


_DRAWN = {
    "timeseries": _lines,
    "stat": _figures,
    "bargauge": _bars,
    "state-timeline": _timeline,
    "table": _table,
}
