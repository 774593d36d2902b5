"""The run directory: where the files lie that the parts of a pod share, and how they are written and read.

`contracts` has their models.

Every file is written whole by rename, so a reader sees the old one or the new one.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from glm5_service.contracts.attestation import Attestation
from glm5_service.contracts.compile_mark import CompileMark
from glm5_service.redact import redact

log = logging.getLogger("glm5")
Model = TypeVar("Model", bound=BaseModel)


class RunDir:
    """Paths of the run directory's files and typed reading; a missing or half-readable file reads as None."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.engine = path / "engine.json"
        self.drain = path / "drain.json"
        self.staging = path / "staging.json"
        self.token = path / "internal-token"
        self.attention = path / "attention"
        self.compiles = path / "compiles"
        self.prometheus = path / "prometheus"

    def attestations(self) -> list[Attestation]:
        """What every rank attested, in the order of ranks."""
        found = (read(path, Attestation) for path in self.attention.glob("rank-*.json"))
        return sorted((record for record in found if record), key=lambda record: record.rank)

    def compile_marks(self) -> list[tuple[int, CompileMark]]:
        """Compilations under way by process id."""
        found = ((path.stem, read(path, CompileMark)) for path in self.compiles.glob("*.json"))
        return [(int(pid), mark) for pid, mark in found if mark and pid.isdigit()]

    def clear(self) -> None:
        """Forget what an earlier run left but engine.json; a stale attestation must not make the next start ready."""
        for stale in [self.drain, *self.attention.glob("*"), *self.compiles.glob("*")]:
            stale.unlink(missing_ok=True)


def read(path: Path, model: type[Model]) -> Model | None:
    """The file as `model`, or None."""
    try:
        return parse(path.read_bytes(), model)
    except OSError:
        return None


def parse(data: bytes | str, model: type[Model]) -> Model | None:
    """The JSON text `data` as `model`, or None."""
    try:
        return model.model_validate_json(data)
    except ValidationError:
        return None


def write(path: Path, record: BaseModel) -> None:
    """Put `record` at `path` by rename, without secrets."""
    write_text(path, redact(record.model_dump_json(indent=1)))


def try_write(path: Path, record: BaseModel) -> bool:
    """As `write`, for work that goes on without the file: one that cannot be written is logged. Whether it was."""
    try:
        write(path, record)
    except OSError as error:
        log.warning("cannot write %s: %s", path, error.strerror)
        return False
    return True


def write_text(path: Path, text: str, mode: int = 0o644) -> None:
    """Put `text` at `path` by rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    temporary.replace(path)
