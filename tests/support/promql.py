"""Which series and labels a PromQL expression speaks of, by PromQL's own grammar."""

from __future__ import annotations

import re
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
    _walk(promql_parser.parse(expr), found)
    return found


def labels_of_legend(legend: str) -> set[str]:
    """Labels that a legend shows."""
    return set(re.findall(r"\{\{\s*(\w+)\s*\}\}", legend))


def labels_of_template(text: str) -> set[str]:
    """Labels that an alert's annotation shows."""
    return set(re.findall(r"\$labels\.(\w+)", text))


def _walk(node: object, found: Names) -> None:
    if isinstance(node, promql_parser.VectorSelector):
        labels = {matcher.name for matcher in node.matchers.matchers}
        found.metrics.setdefault(str(node.name), set()).update(labels)
    if isinstance(node, promql_parser.AggregateExpr) and node.modifier:
        found.labels |= set(node.modifier.labels)
    if isinstance(node, promql_parser.BinaryExpr) and node.modifier:
        modifier = node.modifier
        found.labels |= set(modifier.matching.labels) if modifier.matching else set()
        found.labels |= set(modifier.group_labels or [])
    for name in ("expr", "lhs", "rhs", "vector_selector", "param"):
        child = getattr(node, name, None)
        if child is not None and not isinstance(child, str | float | int):
            _walk(child, found)
    for child in getattr(node, "args", None) or []:
        _walk(child, found)
