"""The run directory: small JSON files that the parts of a pod share, each written whole by rename."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict

Phase = Literal[
    "staging",
    "preflight",
    "starting",
    "loading",
    "compiling",
    "warming",
    "ready",
    "draining",
    "failed",
    "stopped",
]


class EngineState(BaseModel):
    """engine.json: what the supervisor runs and where it stands."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    schema_version: Literal[1] = 1
    argv: list[str]
    pid: int | None = None
    phase: Phase
    since: AwareDatetime
    versions: dict[str, str] = {}


def write_json(path: Path, text: str) -> None:
    """Put `text` at `path` so that a reader sees the old file or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
