"""Reads values.yaml as a tree of entries: keys, defaults, and the comments above them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml


@dataclass
class Entry:
    """One key of values.yaml with the comment above it; `extra` is what its @schema lines say."""

    path: str
    default: Any
    text: str
    extra: dict[str, Any]
    section: str
    children: list[Entry] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition(".")[2]

    @property
    def has_own_keys(self) -> bool:
        """True for a map whose keys are the chart's; false for one whose keys are the user's or the service's."""
        return isinstance(self.default, dict) and not {"additionalProperties", "settings"} & self.extra.keys()

    @property
    def is_nullable(self) -> bool:
        """True if null is accepted: where it means empty, or where the schema names it."""
        kinds = self.extra.get("type", [])
        is_open_map = isinstance(self.default, dict) and "additionalProperties" in self.extra
        return "null" in kinds or self.default == "" or isinstance(self.default, list) or is_open_map


def entries(text: str) -> list[Entry]:
    """The top level of values.yaml, with everything below."""
    return _Reader(text).entries


def flat(found: list[Entry]) -> Iterator[Entry]:
    """Every entry, parents before their children."""
    for entry in found:
        yield entry
        yield from flat(entry.children)


class _Reader:
    def __init__(self, text: str) -> None:
        self._lines = text.splitlines()
        self._section = ""
        root = yaml.compose(text)
        assert isinstance(root, yaml.MappingNode)
        self.entries = self._map(root, "")

    def _map(self, node: yaml.MappingNode, prefix: str) -> list[Entry]:
        return [self._entry(key, value, prefix) for key, value in node.value]

    def _entry(self, key: yaml.Node, value: yaml.Node, prefix: str) -> Entry:
        text, extra = self._comment(key.start_mark.line)
        default = yaml.safe_load(yaml.serialize(value))
        entry = Entry(f"{prefix}{key.value}", default, text, extra, self._section)
        if isinstance(value, yaml.MappingNode) and entry.has_own_keys:
            entry.children = self._map(value, f"{entry.path}.")
        return entry

    def _comment(self, line: int) -> tuple[str, dict[str, Any]]:
        """The comment that ends above `line`; a @section above it is remembered."""
        first = line
        while first > 0 and self._lines[first - 1].lstrip().startswith("#"):
            first -= 1
        above = first - 1
        while above >= 0 and not self._lines[above].strip():
            above -= 1
        if above >= 0 and self._lines[above].startswith("# @section "):
            self._section = self._lines[above].removeprefix("# @section ")
        words: list[str] = []
        extra: dict[str, Any] = {}
        for raw in self._lines[first:line]:
            comment = raw.lstrip().removeprefix("#").strip()
            if comment.startswith("@schema"):
                extra |= yaml.safe_load(comment.removeprefix("@schema"))
            elif not comment.startswith("@section"):
                words.append(comment)
        return " ".join(words), extra
