"""Figures that tests measured, one JSON file a subject under tests/results, written only when asked to.

RECORD_RESULTS=1 keeps them; without it a test run changes no file of the tree.
"""

from __future__ import annotations

import json
import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "results"


def record(subject: str, figures: dict[str, Any]) -> None:
    """Keep the figures of one subject, with machine and date."""
    if not os.environ.get("RECORD_RESULTS"):
        return
    cores = len(os.sched_getaffinity(0))
    machine = f"{platform.machine()}, {cores} cores, Python {platform.python_version()}"
    content = {"measured": datetime.now(UTC).date().isoformat(), "machine": machine, **figures}
    (RESULTS / f"{subject}.json").write_text(json.dumps(content, indent=1) + "\n")
