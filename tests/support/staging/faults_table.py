"""Ties each fault test to its row of the table in service/docs/staging-faults.md.

python -m tests.support.staging.faults_table     writes the table
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glm5_service.staging.reasons import REMEDIES, Reason, StagingError

MODULES = tuple(
    f"tests.staging.{name}"
    for name in ("test_faults_network", "test_faults_source", "test_faults_volume", "test_kills")
)
DOCUMENT = Path(__file__).parents[3] / "service/docs/staging-faults.md"
HEAD = """# Faults and what staging does about them

Each row is a test. The test injects the fault into a real server or file system and asserts the last column. No test
published an unverified file. `make staging-docs` writes this page from the tests.

| Fault | What staging does | Result |
|---|---|---|
"""
REASONS_HEAD = """
## Reasons

`staging.json` and the termination message name the reason. stderr has a sentence with the remedy.

| Reason | Exit code | Remedy |
|---|---|---|
"""


@dataclass(frozen=True)
class Row:
    """One row; `ends` is None where the model is published."""

    fault: str
    then: str
    ends: Reason | None


def fault(
    name: str, *, then: str, ends: Reason | None = None
) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """A test that injects `name`. It returns the StagingError it met, or None when the model was published."""

    def decorate(test: Callable[..., Any]) -> Callable[..., None]:
        @functools.wraps(test)
        def checked(*arguments: Any, **fixtures: Any) -> None:
            met: StagingError | None = test(*arguments, **fixtures)
            assert (met.reason if met is not None else None) == ends, met

        checked.row = Row(name, then, ends)  # type: ignore[attr-defined]
        return checked

    return decorate


def rows() -> list[Row]:
    """Every row, in the order of the tests."""
    modules = [importlib.import_module(name) for name in MODULES]
    return [test.row for module in modules for test in vars(module).values() if hasattr(test, "row")]


def text() -> str:
    """The document."""
    lines = []
    for row in rows():
        ends = f"{row.ends}, exit {REMEDIES[row.ends].exit_code}" if row.ends else "published, exit 0"
        lines.append(f"| {row.fault} | {row.then} | {ends} |\n")
    reasons = [
        f"| {reason} | {remedy.exit_code:d} | {remedy.text} |\n" for reason, remedy in REMEDIES.items()
    ]
    return HEAD + "".join(lines) + REASONS_HEAD + "".join(reasons)


if __name__ == "__main__":
    DOCUMENT.parent.mkdir(exist_ok=True)
    DOCUMENT.write_text(text())
