"""What all boards share: variables, annotations of restarts, links to each other, rows."""

from __future__ import annotations

from dataclasses import dataclass

from charts.dashboards.panels import DATASOURCE, Panel
from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.models import dashboard as d

TAG = "glm5"


@dataclass(frozen=True)
class Row:
    """Panels under a headline, laid out from left to right."""

    title: str
    panels: list[Panel]


def board(name: str, title: str, about: str, rows: list[Row], *, since: str = "now-3h") -> d.Dashboard:
    """A board; `name` is its file and, with the project's, its uid."""
    made = dashboard.Dashboard(title).uid(f"glm5-{name}").description(about).tags([TAG]).editable()
    made = made.time(since, "now").refresh("30s").timezone("browser").tooltip(d.DashboardCursorSync.CROSSHAIR)
    made = made.link(_other_boards()).annotation(_restarts())
    made = made.with_variable(
        dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus")
    )
    for variable in (
        _choice("namespace", "label_values(glm5_sidecar_scrape_success, namespace)"),
        _choice("release", 'label_values(glm5_sidecar_scrape_success{namespace=~"$namespace"}, release)'),
        _choice(
            "pod",
            'label_values(glm5_sidecar_scrape_success{namespace=~"$namespace",release=~"$release"}, pod)',
        ),
    ):
        made = made.with_variable(variable)
    for row in rows:
        made = made.with_row(dashboard.Row(row.title))
        for panel in row.panels:
            made = made.with_panel(panel)
    built = made.build()
    for number, placed in enumerate(built.panels or [], 1):
        placed.id_val = number
    return built


def _choice(name: str, query: str) -> dashboard.QueryVariable:
    """One or more values of a label, all of them at first."""
    variable = dashboard.QueryVariable(name).label(name.capitalize()).query(query).datasource(DATASOURCE)
    everything = d.VariableOption(selected=True, text="All", value="$__all")
    variable = (
        variable.multi(True).include_all(True).current(everything).sort(d.VariableSort.ALPHABETICAL_ASC)
    )
    return variable.refresh(d.VariableRefresh.ON_TIME_RANGE_CHANGED)


def _restarts() -> dashboard.AnnotationQuery:
    where = 'namespace=~"$namespace",release=~"$release",pod=~"$pod"'
    expr = f"resets(max by (pod) (glm5_engine_started{{{where}}})[2m:15s]) > 0"
    query = dashboard.AnnotationQuery().name("Restarts").datasource(DATASOURCE).expr(expr)
    return query.enable(True).hide(False).icon_color("red")


def _other_boards() -> dashboard.DashboardLink:
    link = (
        dashboard.DashboardLink("Boards").type(d.DashboardLinkType.DASHBOARDS).tags([TAG]).as_dropdown(True)
    )
    return link.include_vars(True).keep_time(True)
