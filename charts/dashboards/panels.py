"""The kinds of panel of the boards, each with unit, legend, thresholds and a description that says what to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

from charts.dashboards.queries import Query, state
from grafana_foundation_sdk.builders import (
    bargauge,
    common,
    dashboard,
    prometheus,
    stat,
    statetimeline,
    table,
    timeseries,
)
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import common as c
from grafana_foundation_sdk.models import dashboard as d
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

DATASOURCE = d.DataSourceRef(type_val="prometheus", uid="${datasource}")
Panel = Builder[d.Panel]
Kind = TypeVar("Kind", bound=Any)
GREEN, YELLOW, RED, BLUE, GREY = "green", "yellow", "red", "blue", "#808080"


@dataclass(frozen=True)
class Size:
    """Columns of 24 and rows."""

    width: int
    height: int = 8


THIRD, HALF, QUARTER, WIDE = Size(8), Size(12), Size(6, 5), Size(24)


def steps(first: str, *further: tuple[float, str]) -> Builder[d.ThresholdsConfig]:
    """Colours by value: the first from below, each further one from its value on."""
    found = [
        d.Threshold(value=None, color=first),
        *(d.Threshold(value=value, color=color) for value, color in further),
    ]
    return dashboard.ThresholdsConfig().mode(d.ThresholdsMode.ABSOLUTE).steps(found)


def names(texts: dict[float, tuple[str, str]]) -> list[Any]:
    """Values shown as text in a colour."""
    options = {
        f"{value:g}": d.ValueMappingResult(text=text, color=color, index=index)
        for index, (value, (text, color)) in enumerate(texts.items())
    }
    return [d.ValueMap(options=options)]


def states(phases: tuple[str, ...]) -> list[Any]:
    """The names of `queries.state`, coloured by what they mean."""
    colors = {
        "ready": GREEN,
        "done": GREEN,
        "failed": RED,
        "stalled": RED,
        "stopped": GREY,
        "draining": YELLOW,
        "waiting": YELLOW,
    }
    return names({n: (phase, colors.get(phase, BLUE)) for n, phase in enumerate(phases, 1)})


def over_time(
    title: str, about: str, unit: str, queries: list[Query], size: Size = THIRD, *,
    limits: Builder[d.ThresholdsConfig] | None = None, most: float | None = None, stacked: bool = False,
) -> Panel:  # fmt: skip
    """Lines over time, with last and highest value in the legend."""
    legend = (
        common.VizLegendOptions().display_mode(c.LegendDisplayMode.TABLE).placement(c.LegendPlacement.BOTTOM)
    )
    legend = legend.show_legend(True).calcs(["lastNotNull", "max"])
    panel = _of(timeseries.Panel(), title, about, queries, size).unit(unit).legend(legend).min(0)
    panel = panel.tooltip(
        common.VizTooltipOptions().mode(c.TooltipDisplayMode.MULTI).sort(c.SortOrder.DESCENDING)
    )
    panel = panel.fill_opacity(30 if stacked else 8).show_points(c.VisibilityMode.NEVER)
    if stacked:
        panel = panel.stacking(common.StackingConfig().mode(c.StackingMode.NORMAL).group("A"))
    if most is not None:
        panel = panel.max(most)
    if limits is not None:
        style = common.GraphThresholdsStyleConfig().mode(c.GraphTresholdsStyleMode.DASHED)
        panel = panel.thresholds(limits).thresholds_style(style)
    return panel


def figure(
    title: str, about: str, unit: str, queries: list[Query], size: Size = QUARTER, *,
    limits: Builder[d.ThresholdsConfig] | None = None, texts: list[Any] | None = None,
) -> Panel:  # fmt: skip
    """The value of now, large."""
    panel = _large(title, about, queries, size).unit(unit)
    panel = panel.thresholds(limits or steps(BLUE)).mappings(texts or [])
    return panel.text_mode(
        c.BigValueTextMode.VALUE_AND_NAME if len(queries) > 1 else c.BigValueTextMode.VALUE
    )


def name_of_now(title: str, about: str, query: Query, size: Size = QUARTER) -> Panel:
    """A label's value, large: the legend is the text."""
    panel = _large(title, about, [query], size).text_mode(c.BigValueTextMode.NAME)
    return panel.unit("none").thresholds(steps(BLUE))


def bars(title: str, about: str, unit: str, queries: list[Query], size: Size = THIRD) -> Panel:
    """The values of now, side by side."""
    panel = _of(bargauge.Panel(), title, about, queries, size, instant=True).unit(unit).min(0)
    panel = panel.orientation(c.VizOrientation.HORIZONTAL).display_mode(c.BarGaugeDisplayMode.BASIC)
    return panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"])).thresholds(steps(BLUE))


def timeline(title: str, about: str, queries: list[Query], texts: list[Any], size: Size = HALF) -> Panel:
    """States over time, a bar a series."""
    panel = (
        _of(statetimeline.Panel(), title, about, queries, size)
        .mappings(texts)
        .unit("none")
        .thresholds(steps(BLUE))
    )
    panel = panel.legend(
        common.VizLegendOptions().show_legend(False).display_mode(c.LegendDisplayMode.HIDDEN)
    )
    return panel.show_value(c.VisibilityMode.AUTO).merge_values(True).line_width(0).fill_opacity(70)


def phases(title: str, about: str, metric: str, among: tuple[str, ...], size: Size) -> Panel:
    """Which of its phases each pod is in."""
    return timeline(title, about, [Query(state(metric, among), "{{pod}}")], states(among), size)


def labels(title: str, about: str, expr: str, columns: list[str], size: Size = HALF) -> Panel:
    """The labels of an info metric as a table with those columns."""
    panel = _of(table.Panel(), title, about, [Query(expr, "")], size, instant=True, as_table=True)
    panel = panel.unit("none").show_header(True)
    order = {name: index for index, name in enumerate(columns)}
    options = {"includeByName": dict.fromkeys(columns, True), "indexByName": order}
    return panel.with_transformation(d.DataTransformerConfig(id_val="organize", options=options))


def _large(title: str, about: str, queries: list[Query], size: Size) -> stat.Panel:
    panel = _of(stat.Panel(), title, about, queries, size, instant=True)
    panel = panel.color_mode(c.BigValueColorMode.BACKGROUND).graph_mode(c.BigValueGraphMode.NONE)
    return panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))


def _of(
    panel: Kind,
    title: str,
    about: str,
    queries: list[Query],
    size: Size,
    *,
    instant: bool = False,
    as_table: bool = False,
) -> Kind:
    panel = panel.title(title).description(about).datasource(DATASOURCE).span(size.width).height(size.height)
    for number, query in enumerate(queries):
        target = prometheus.Dataquery().expr(query.expr).ref_id(chr(ord("A") + number)).datasource(DATASOURCE)
        target = target.legend_format(query.legend)
        target = target.instant() if instant else target.range()
        panel = panel.with_target(target.format(PromQueryFormat.TABLE) if as_table else target)
    return panel
