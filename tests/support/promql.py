"""Which series and labels a PromQL expression speaks of, by PromQL's own grammar."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

import promql_parser


@dataclass
class Names:
    """Metrics with the labels they are selected by, and every label that is grouped, matched or joined by."""

    metrics: dict[str, set[str]] = field(default_factory=dict)
    labels: set[str] = field(default_factory=set)


def names_in(expr: str) -> Names:
    """Names an expression uses; a syntax error is a ValueError with the parser's words."""
    found = Names()
    _visit(promql_parser.parse(expr), lambda node: _take(node, found))
    return found


def selectors_in(expr: str) -> list[str]:
    """Every selector of an expression, as text that is a query by itself."""
    found: list[str] = []

    def keep(node: object) -> None:
        if isinstance(node, promql_parser.VectorSelector):
            found.append(" ".join(node.prettify().split()))

    _visit(promql_parser.parse(expr), keep)
    return sorted(set(found))


def labels_of_legend(legend: str) -> set[str]:
    """Labels that a legend shows."""
    return set(re.findall(r"\{\{\s*(\w+)\s*\}\}", legend))


def labels_of_template(text: str) -> set[str]:
    """Labels that an alert's annotation shows."""
    return set(re.findall(r"\$labels\.(\w+)", text))


def _visit(node: object, see: Callable[[object], None]) -> None:
    see(node)
    children = [getattr(node, name, None) for name in ("expr", "lhs", "rhs", "vector_selector", "param")]
    for child in [*children, *(getattr(node, "args", None) or [])]:
        if child is not None and not isinstance(child, str | float | int):
            _visit(child, see)


def _take(node: object, found: Names) -> None:
    if isinstance(node, promql_parser.VectorSelector):
        labels = {matcher.name for matcher in node.matchers.matchers}
        found.metrics.setdefault(str(node.name), set()).update(labels)
    if isinstance(node, promql_parser.AggregateExpr) and node.modifier:
        found.labels |= set(node.modifier.labels)
    if isinstance(node, promql_parser.BinaryExpr) and node.modifier:
        found.labels |= set(node.modifier.matching.labels) if node.modifier.matching else set()
        found.labels |= set(node.modifier.group_labels or [])
