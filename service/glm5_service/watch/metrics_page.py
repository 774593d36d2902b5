"""Reads vLLM's metrics page: the lines of some families as text, or the values of some series. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection

from prometheus_client.parser import text_string_to_metric_families


def lines_of(page: str, names: Collection[str]) -> str:
    """The lines about series of these names, help and type included, text unchanged."""
    return "".join(f"{line}\n" for line in page.splitlines() if _name(line) in names)


def values_of(page: str, names: Collection[str]) -> dict[str, float]:
    """Each series' value, summed over its labels; NaN and infinities are left out, for they say nothing.

    Only the lines that are wanted are parsed: the whole page would take forty times as long, at every look.

    Raises:
        ValueError: a line that is no sample.
    """
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families(lines_of(page, names)):
        for sample in family.samples:
            if sample.name in names and math.isfinite(sample.value):
                sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
    return sums


def _name(line: str) -> str:
    if line.startswith("# "):
        parts = line.split(" ", 3)
        return parts[2] if len(parts) > 2 else ""
    return line.split("{", 1)[0].split(" ", 1)[0]
