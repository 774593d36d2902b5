"""manifest.json, written last beside a published model: what it is, and what was verified about each file.

A folder without a valid manifest is not a model. Writer: `staging.store.publish`. Readers: preflight, the next stager.
The record of one file is also kept alone, beside a revision under construction.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, AwareDatetime, Field

from glm5_service import __version__
from glm5_service.contracts.base import Record

MANIFEST_NAME = "manifest.json"
# no file has this mtime, so whoever compares takes the file for one that was never verified
CONDEMNED = -1

Count = Annotated[int, Field(ge=0, lt=1 << 63)]
"""What a file system can state: sizes, inodes, nanoseconds."""


def _file_name(value: str) -> str:
    if value in ("", ".", "..") or "/" in value or "\0" in value:
        raise ValueError("no name of a file in the model's folder")
    return value


class FileRecord(Record):
    """One verified file. It is trusted without reading only while size, mtime and inode still match."""

    name: Annotated[str, AfterValidator(_file_name)]
    size: Count
    sha256: str
    source_digest: str | None
    """The digest the source stated and the bytes matched, as kind:hex; None if the source states none."""
    etag: str | None
    mtime_ns: Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)]
    inode: Annotated[int, Field(ge=0, lt=1 << 64)]

    def is_untouched(self, path: Path) -> bool:
        """True while the file at `path` is the one that was verified."""
        try:
            stat = path.lstat()
        except OSError:
            return False
        return (stat.st_size, stat.st_mtime_ns, stat.st_ino) == (self.size, self.mtime_ns, self.inode)

    @property
    def is_condemned(self) -> bool:
        """True once the file was read again and found damaged."""
        return self.mtime_ns == CONDEMNED

    def condemned(self) -> FileRecord:
        """The record of the same file, found damaged."""
        return self.model_copy(update={"mtime_ns": CONDEMNED})


class TypeFacts(Record):
    """How much of a model is of one tensor type."""

    tensors: int
    bytes: int


class ModelSummary(Record):
    """What the headers say."""

    architecture: str
    name: str | None
    tensors: int
    tensor_bytes: int
    context_length: int | None
    splits: int
    types: dict[str, TypeFacts]
    first_file: str
    """The file to give to the engine."""


class Manifest(Record):
    """The whole manifest."""

    schema_version: Literal[1] = 1
    source: str
    tokenizer_source: str | None = None
    quantisation: str | None = None
    revision: str
    files: list[FileRecord]
    gguf: ModelSummary
    staged_at: AwareDatetime
    tool_version: str = __version__

    @property
    def total_bytes(self) -> int:
        return sum(record.size for record in self.files)

    def touched(self, folder: Path) -> list[FileRecord]:
        """Files that are missing or no longer the ones that were verified."""
        return [record for record in self.files if not record.is_untouched(folder / record.name)]
