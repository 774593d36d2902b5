"""manifest.json, written last beside a published model: what it is, and what was verified about each file.

A folder without a valid manifest is not a model. Readers: the engine's preflight, the sidecar, the next stager.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, ValidationError

from glm5_service import __version__
from glm5_service.staging.reasons import StagingError
from glm5_service.staging.records import RemoteFile, opaque
from glm5_service.staging.store.volume import Volume, entries, read_if_there

MANIFEST_NAME = "manifest.json"
# no file has this mtime, so whoever compares takes the file for one that was never verified
CONDEMNED = -1


class FileRecord(BaseModel):
    """One verified file. It is trusted without reading only while size, mtime and inode still match."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str
    size: int
    sha256: str
    source_digest: str | None
    """The digest the source stated and the bytes matched, as kind:hex; None if the source states none."""
    etag: str | None
    mtime_ns: int
    inode: int

    @classmethod
    def of(cls, file: RemoteFile, sha256: str, stat: os.stat_result) -> FileRecord:
        """The record of a file whose bytes were just verified."""
        return cls(
            name=file.name,
            size=file.size,
            sha256=sha256,
            source_digest=str(file.digest) if file.digest else None,
            etag=file.etag,
            mtime_ns=stat.st_mtime_ns,
            inode=stat.st_ino,
        )

    def is_untouched(self, path: Path) -> bool:
        """True while the file at `path` is the one that was verified."""
        try:
            stat = path.stat()
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

    def is_version_of(self, file: RemoteFile) -> bool:
        """True if the verified bytes are the ones `file` stands for: equal digest, else equal ETag."""
        if self.size != file.size:
            return False
        if file.digest is None:
            return file.etag is not None and opaque(file.etag) == opaque(self.etag)
        return str(file.digest) in (self.source_digest, f"sha256:{self.sha256}")


class TypeFacts(BaseModel):
    """How much of a model is of one tensor type."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    tensors: int
    bytes: int


class ModelSummary(BaseModel):
    """What the headers say."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    architecture: str
    name: str | None
    tensors: int
    tensor_bytes: int
    context_length: int | None
    splits: int
    types: dict[str, TypeFacts]
    first_file: str
    """The file to give to the engine."""


class Manifest(BaseModel):
    """The whole manifest."""

    model_config = ConfigDict(frozen=True, extra="ignore")

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


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest of a published model; None if there is none that can be read and is valid."""
    try:
        return require_manifest(folder)
    except StagingError:
        return None


def require_manifest(folder: Path) -> Manifest | None:
    """As `read_manifest`; raises StagingError if the volume does not give it."""
    data = read_if_there(folder / MANIFEST_NAME)
    try:
        return Manifest.model_validate_json(data) if data is not None else None
    except ValidationError:
        return None


def published(volume: Volume) -> list[tuple[Path, Manifest]]:
    """Published revisions with valid manifests, the current one first. Raises StagingError where one cannot be read,
    rather than take for gone what is here."""
    current = volume.current_revision()
    folders = sorted(entries(volume.revisions), key=lambda folder: folder.resolve() != current)
    pairs = [(folder.resolve(), require_manifest(folder)) for folder in folders]
    return [(folder, manifest) for folder, manifest in pairs if manifest is not None]


def has_manifest(folder: Path) -> bool:
    """False only if there is certainly none; one that is damaged, newer or out of reach for now is one."""
    try:
        (folder / MANIFEST_NAME).lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True
