"""Compares what the source offers with what is on the volume. Decides what happens to each file and whether it fits.

Reads names, sizes, records and journals, and changes nothing. Next: assemble.py.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from glm5_service.contracts.manifest import FileRecord
from glm5_service.staging.reasons import Reason, StagingError
from glm5_service.staging.records import Listing, RemoteFile
from glm5_service.staging.store.build import Build, other_builds
from glm5_service.staging.store.manifest import is_version, published
from glm5_service.staging.store.volume import Volume, inode_of, volume_error
from glm5_service.staging.transfer.partial import best_leftover


class Action(StrEnum):
    """What a file needs; the value is what the printed plan says."""

    DONE = "verified"
    REUSE = "reuse"
    REHASH = "hash again"
    ADOPT = "link and hash"
    RESUME = "continue"
    FETCH = "fetch"


@dataclass(frozen=True)
class Step:
    """One file's part of the plan. `here` is the file on the volume it starts from."""

    file: RemoteFile
    action: Action
    have_bytes: int = 0
    here: Path | None = None
    record: FileRecord | None = None

    @property
    def missing_bytes(self) -> int:
        """Bytes that have to come from the source."""
        return self.file.size - self.have_bytes if self.action in (Action.RESUME, Action.FETCH) else 0


@dataclass(frozen=True)
class Plan:
    """What will happen, and the room for it. `intact` is the folder where this revision is published already."""

    listing: Listing
    steps: tuple[Step, ...]
    intact: Path | None
    free_bytes: int
    free_inodes: int | None

    @property
    def revision(self) -> str:
        return self.listing.revision

    @property
    def missing_bytes(self) -> int:
        return sum(step.missing_bytes for step in self.steps)

    def check_room(self, headroom_bytes: int) -> None:
        """Raise StagingError(OUT_OF_SPACE) if the volume cannot take it; called before the first byte."""
        need = self.missing_bytes + headroom_bytes if self.missing_bytes else 0
        if need > self.free_bytes:
            raise StagingError(
                Reason.OUT_OF_SPACE, "free bytes on the volume", self.free_bytes, expected=f"at least {need}"
            )
        # records, journals and the manifest come on top of the files themselves
        inodes = 3 * len(self.steps) + 16
        if self.free_inodes is not None and self.free_inodes < inodes:
            raise StagingError(
                Reason.OUT_OF_SPACE,
                "free inodes on the volume",
                self.free_inodes,
                expected=f"at least {inodes}",
            )


def make_plan(listing: Listing, volume: Volume, *, local: frozenset[str] = frozenset()) -> Plan:
    """Plan for `listing`. Files named in `local` lie on a mounted volume and may be linked."""
    models = published(volume)
    build = Build(volume, listing.revision, "")
    shelves = [(folder, manifest.files) for folder, manifest in models] + other_builds(volume, build)
    shelf = _Shelf(tuple(shelves))
    steps = tuple(_step(file, build, shelf, volume, file.name in local) for file in listing.files)
    same = (
        folder
        for folder, manifest in models
        if manifest.revision == listing.revision and not manifest.touched(folder)
    )
    free_bytes, free_inodes = _room(volume.target)
    return Plan(
        listing,
        steps,
        next(same, None),
        free_bytes,
        free_inodes,
    )


@dataclass(frozen=True)
class _Shelf:
    """Verified files of this volume: of published revisions, and of builds that were never finished."""

    folders: tuple[tuple[Path, list[FileRecord]], ...]

    def find(self, file: RemoteFile) -> tuple[Step | None, Path | None]:
        """A step that reuses an untouched copy, else a touched copy that may still be good."""
        doubtful: Path | None = None
        for folder, records in self.folders:
            for record in records:
                path = folder / record.name
                same_name = file.digest is not None or record.name == file.name
                if not is_version(record, file) or not same_name or record.is_condemned:
                    continue
                if record.is_untouched(path):
                    return Step(file, Action.REUSE, file.size, path, record), None
                if doubtful is None and _has_size(path, file.size):
                    doubtful = path
        return None, doubtful

    def refuse_condemned(self, file: RemoteFile) -> None:
        """Raise StagingError if a local source offers, without a digest, the very file that was found damaged."""
        offered = inode_of(Path(file.key))
        for folder, records in self.folders:
            for record in records:
                is_damaged = record.is_condemned and is_version(record, file)
                if is_damaged and inode_of(folder / record.name) == offered:
                    raise StagingError(
                        Reason.CORRUPT,
                        "damaged, and linked to the model",
                        file.key,
                        expected="a sound file in its place at the source",
                    )


def _step(file: RemoteFile, build: Build, shelf: _Shelf, volume: Volume, is_local: bool) -> Step:
    built = build.path(file.name)
    record = build.record(file.name)
    if record is not None and is_version(record, file):
        return Step(file, Action.DONE, file.size, built, record)
    reuse, doubtful = shelf.find(file)
    if reuse is not None:
        return reuse
    if file.digest is not None:
        doubtful = built if _has_size(built, file.size) else doubtful
        if doubtful is not None:
            return Step(file, Action.REHASH, file.size, doubtful)
    if is_local and _same_volume(Path(file.key), volume.target):
        if file.digest is None:
            shelf.refuse_condemned(file)
        return Step(file, Action.ADOPT, file.size, Path(file.key))
    found = best_leftover(volume.partials, file)
    if found is not None:
        return Step(file, Action.RESUME, found[1].coverage.total, found[0])
    return Step(file, Action.FETCH)


def _has_size(path: Path, size: int) -> bool:
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_size == size


def _same_volume(path: Path, target: Path) -> bool:
    try:
        return path.stat().st_dev == _existing(target).stat().st_dev
    except OSError:
        return False


def _room(target: Path) -> tuple[int, int | None]:
    """Free bytes and inodes for this user; None where the filesystem does not count inodes."""
    try:
        room = os.statvfs(_existing(target))
    except OSError as error:
        raise volume_error(error, f"cannot look at {target}") from error
    return room.f_bavail * room.f_frsize, room.f_favail if room.f_files else None


def _existing(path: Path) -> Path:
    return next(folder for folder in (path, *path.absolute().parents) if folder.exists())
