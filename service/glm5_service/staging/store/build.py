"""A revision under construction: a hidden folder of verified files, each with its record.

It survives a kill. A file that has a record and is untouched is not read again.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from glm5_service.contracts.manifest import FileRecord
from glm5_service.staging.records import RemoteFile
from glm5_service.staging.store import files
from glm5_service.staging.store.lease import NO_HARD_LINKS
from glm5_service.staging.store.manifest import record_of
from glm5_service.staging.store.volume import (
    Inode,
    Volume,
    entries,
    inode_of,
    read_if_there,
    sync_folder,
    volume_error,
    write_durably,
)

RECORDS_SUFFIX = ".records"


class Build:
    """The folder of one revision in the making."""

    def __init__(self, volume: Volume, revision: str, nonce: str) -> None:
        self.folder = volume.build(revision)
        self._records = self.folder.with_name(revision + RECORDS_SUFFIX)
        self._nonce = nonce

    def prepare(self) -> None:
        """Create the folders."""
        try:
            files.make_folder(self.folder)
            files.make_folder(self._records)
        except OSError as error:
            raise volume_error(error, f"cannot create {self.folder}") from error

    def path(self, name: str) -> Path:
        return self.folder / name

    def record(self, name: str) -> FileRecord | None:
        """The record of a file that is here and untouched since it was verified."""
        record = _read_record(self._records / f"{name}.json")
        return record if record is not None and record.is_untouched(self.path(name)) else None

    def keep(self, file: RemoteFile, sha256: str, stat: os.stat_result) -> FileRecord:
        """Record a verified file that lies in the folder."""
        record = record_of(file, sha256, stat)
        try:
            sync_folder(self.folder)
            write_durably(self._records / f"{file.name}.json", record.model_dump_json(), nonce=self._nonce)
        except OSError as error:
            raise volume_error(error, f"cannot record {file.name}") from error
        return record

    def link(self, origin: Path, name: str) -> bool:
        """Give a file of this volume a second name here; False where that is not possible."""
        try:
            files.remove(self.path(name))
            os.link(origin, self.path(name))
        except OSError as error:
            if error.errno in (*NO_HARD_LINKS, errno.EXDEV):
                return False
            raise volume_error(error, f"cannot link {origin}") from error
        return True

    def drop(self, name: str) -> None:
        """Remove a file that turned out damaged."""
        try:
            files.remove(self._records / f"{name}.json")
            files.remove(self.path(name))
        except OSError as error:
            raise volume_error(error, f"cannot remove {name}") from error

    def drop_others(self) -> None:
        """Builds of other revisions are abandoned once their files were reused."""
        for other in entries(self.folder.parent):
            if other not in (self.folder, self._records):
                with suppress(OSError):
                    files.remove_tree(other)

    def discard_records(self) -> None:
        """The manifest has them now."""
        with suppress(OSError):
            files.remove_tree(self._records)


def builds(volume: Volume) -> list[tuple[Path, list[FileRecord]]]:
    """Folders and records of all builds."""
    found = []
    for records in entries(volume.builds, f"*{RECORDS_SUFFIX}"):
        read = [_read_record(path) for path in entries(records, "*.json")]
        folder = records.with_name(records.name.removesuffix(RECORDS_SUFFIX))
        found.append((folder, [record for record in read if record is not None]))
    return found


def other_builds(volume: Volume, build: Build) -> list[tuple[Path, list[FileRecord]]]:
    """Folders and records of the builds of other revisions."""
    return [(folder, records) for folder, records in builds(volume) if folder != build.folder]


def drop_damaged(volume: Volume, damaged: frozenset[Inode]) -> None:
    """Remove from all builds the files that lie in one of `damaged`."""
    for folder, records in builds(volume):
        for record in records:
            if inode_of(folder / record.name) in damaged:
                Build(volume, folder.name, "").drop(record.name)


def _read_record(path: Path) -> FileRecord | None:
    data = read_if_there(path)
    try:
        return FileRecord.model_validate_json(data) if data is not None else None
    except ValidationError:
        return None
