"""Reads manifests of published models, and relates their records to the files that a source lists."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import ValidationError

from glm5_service.contracts.manifest import MANIFEST_NAME, FileRecord, Manifest
from glm5_service.staging.reasons import StagingError
from glm5_service.staging.records import RemoteFile, opaque
from glm5_service.staging.store.volume import Volume, entries, read_if_there


def record_of(file: RemoteFile, sha256: str, stat: os.stat_result) -> FileRecord:
    """The record of a file whose bytes were just verified."""
    return FileRecord(
        name=file.name,
        size=file.size,
        sha256=sha256,
        source_digest=str(file.digest) if file.digest else None,
        etag=file.etag,
        mtime_ns=stat.st_mtime_ns,
        inode=stat.st_ino,
    )


def is_version(record: FileRecord, file: RemoteFile) -> bool:
    """True if the verified bytes are the ones `file` stands for: equal digest, else equal ETag."""
    if record.size != file.size:
        return False
    if file.digest is None:
        return file.etag is not None and opaque(file.etag) == opaque(record.etag)
    return str(file.digest) in (record.source_digest, f"sha256:{record.sha256}")


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest of a published model; None if there is none that can be read and is valid."""
    try:
        # `current` is a link by design
        return require_manifest(folder.resolve())
    except StagingError:
        return None


def require_manifest(folder: Path) -> Manifest | None:
    """As `read_manifest`; raises StagingError if the volume does not give it."""
    data = read_if_there(folder / MANIFEST_NAME)
    try:
        return Manifest.model_validate_json(data) if data is not None else None
    except ValidationError:
        return None


def models_in(volume: Volume) -> list[Path]:
    """The folders of `revisions`, whole or not. A link there is not ours. Raises StagingError if it cannot be listed."""
    return [folder for folder in entries(volume.revisions) if not folder.is_symlink()]


def published(volume: Volume) -> list[tuple[Path, Manifest]]:
    """Published revisions with valid manifests, the current one first. Raises StagingError where one cannot be read,
    rather than take for gone what is here."""
    current = volume.current_revision()
    folders = sorted(models_in(volume), key=lambda folder: folder.resolve() != current)
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
