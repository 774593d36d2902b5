"""docs/values.md: every value of the chart and every setting of the service, as tables."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from charts.reference.comments import Entry, flat
from charts.reference.schema import Schema, setting

_HEAD = """# Values of the chart

`make chart-docs` generates this page from [values.yaml](../charts/glm5/values.yaml) and from the settings of the service.

Write your values into a file of your own and pass it to every `helm upgrade`. Keys that are not listed are refused.
`null` means "empty" for text, lists and maps, and is refused elsewhere. A number may be given as text, as `--set` does.
"""
_SETTINGS = """
## Settings of the service

The chart passes `settings` on to the service unchanged. `null` returns a setting to the service's own default. The chart
sets some settings itself and refuses them here. The last column names the value to use instead.

| setting | default | what it does | set by |
|---|---|---|---|
"""


def page(entries: list[Entry], settings: Schema, owned: dict[str, dict[str, str]]) -> str:
    """The page's text."""
    return (
        _HEAD
        + "\n".join(_values(entries))
        + "\n"
        + _SETTINGS
        + "\n".join(_settings(entries, settings, owned))
        + "\n"
    )


def _values(entries: list[Entry]) -> Iterator[str]:
    section = ""
    for entry in flat(entries):
        if "settings" in entry.extra:
            continue
        if entry.section != section:
            section = entry.section
            yield from ("", f"## {section}", "", "| value | default | what it does |", "|---|---|---|")
        # a parent has no default of its own: those of its keys follow
        default = "" if entry.children else f"`{json.dumps(entry.default, ensure_ascii=False)}`"
        yield f"| `{entry.path}` | {default} | {_cell(entry.text)} |"


def _settings(entries: list[Entry], settings: Schema, owned: dict[str, dict[str, str]]) -> Iterator[str]:
    given = next(entry.default for entry in entries if "settings" in entry.extra)
    for path in _paths(settings, ""):
        schema = setting(settings, path)
        default = json.dumps(_chosen(given, path, schema.get("default")), ensure_ascii=False)
        by = owned.get(path)
        setter = "" if by is None else f"`{by['value']}`" if by["value"] else "the chart"
        yield f"| `{path}` | {'' if by else f'`{default}`'} | {_cell(schema.get('description', ''))} | {setter} |"


def _paths(schema: Schema, prefix: str) -> Iterator[str]:
    for name, item in schema["properties"].items():
        if "properties" in item:
            yield from _paths(item, f"{prefix}{name}.")
        else:
            yield prefix + name


def _chosen(given: Any, path: str, default: Any) -> Any:
    """The chart's default of a setting, else the service's."""
    for part in path.split("."):
        if not isinstance(given, dict) or part not in given:
            return default
        given = given[part]
    return given


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
