"""What the templates look up: ranges of numbers, defaults of settings, and vLLM's flags."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from charts.reference.comments import Entry, flat
from charts.reference.schema import BOUNDS, NUMERIC, Schema, typed


def tables(entries: list[Entry], settings: Schema) -> dict[str, Any]:
    """Content of files/values/tables.json."""
    leaves = dict(_leaves(settings, ""))
    given = next(entry.default for entry in entries if entry.path == "settings")
    return {
        "numbers": _numbers(entries, leaves),
        "defaults": dict(_defaults(given, "")),
        "serviceDefaults": {
            path: leaf["default"] for path, leaf in leaves.items() if leaf.get("default") is not None
        },
        "secrets": [path for path, leaf in leaves.items() if "writeOnly" in str(leaf)],
        "flags": {leaf["flag"]: path for path, leaf in leaves.items() if "flag" in leaf},
        "aliases": leaves["engine.extra_args"]["aliases"],
    }


def _numbers(entries: list[Entry], leaves: dict[str, Schema]) -> dict[str, Schema]:
    """Kind and range of every number by its path in the values."""
    found = {
        entry.path: typed(entry)
        for entry in flat(entries)
        if not entry.children and not entry.extra.get("settings")
    }
    found |= {f"settings.{path}": leaf for path, leaf in leaves.items()}
    return {path: numeric for path, schema in found.items() if (numeric := _numeric(schema))}


def _numeric(schema: Schema) -> Schema | None:
    for option in schema.get("anyOf", [schema]):
        kinds = option.get("type")
        for kind in kinds if isinstance(kinds, list) else [kinds]:
            if kind in NUMERIC:
                return {"kind": kind} | {key: option[key] for key in BOUNDS if key in option}
    return None


def _leaves(schema: Schema, prefix: str) -> Iterator[tuple[str, Schema]]:
    for name, item in schema["properties"].items():
        if "properties" in item:
            yield from _leaves(item, f"{prefix}{name}.")
        else:
            yield prefix + name, item


def _defaults(node: dict[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, item in node.items():
        if isinstance(item, dict):
            yield from _defaults(item, f"{prefix}{name}.")
        else:
            yield prefix + name, item
