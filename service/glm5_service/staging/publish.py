"""Makes a finished build a revision and a revision the current one, each in one step; removes what is no longer kept.

Order: every file is verified and on disk; manifest; rename of the folder; rename of the link `current`. A reader that
resolves `current` has a whole model at every moment, before, between and after.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from glm5_service.settings.staging import StagingSettings
from glm5_service.staging.amend import names_of
from glm5_service.staging.build import Build
from glm5_service.staging.clock import Clock
from glm5_service.staging.inuse import held_revisions
from glm5_service.staging.lock import TargetLock
from glm5_service.staging.manifest import (
    MANIFEST_NAME,
    FileRecord,
    Manifest,
    has_manifest,
    read_manifest,
)
from glm5_service.staging.reasons import Reason, StagingError
from glm5_service.staging.records import Listing
from glm5_service.staging.verify import check_structure
from glm5_service.staging.volume import Volume, entries, sync_folder, volume_error, write_durably


def publish(
    settings: StagingSettings, listing: Listing, volume: Volume, build: Build, lock: TargetLock
) -> tuple[Path, Manifest]:
    """Check the structure of the build, write its manifest and make it a revision: its folder. Raises StagingError."""
    names = [file.name for file in listing.files]
    summary = check_structure(build.folder, names, settings.architecture)
    records = [_verified(build, name) for name in names]
    manifest = Manifest(
        **names_of(settings, listing),
        revision=listing.revision,
        files=records,
        gguf=summary,
        staged_at=datetime.now(UTC),
    )
    lock.check()
    try:
        _drop_strangers(build.folder, names)
        write_durably(
            build.folder / MANIFEST_NAME, manifest.model_dump_json(indent=1), nonce=lock.owner.nonce
        )
        final = _free_name(volume, listing.revision)
        build.folder.rename(final)
        sync_folder(volume.revisions)
    except OSError as error:
        raise volume_error(error, "cannot publish the model") from error
    build.discard_records()
    return final, manifest


def switch(volume: Volume, revision: Path, lock: TargetLock) -> None:
    """Point `current` at a published revision, in one step."""
    lock.check()
    link = volume.target / f".current.{lock.owner.nonce}"
    try:
        link.unlink(missing_ok=True)
        link.symlink_to(os.path.relpath(revision, volume.target))
        link.replace(volume.current)
        sync_folder(volume.target)
    except OSError as error:
        raise volume_error(error, "cannot switch to the model") from error


def prune(
    volume: Volume,
    keep: int,
    lock: TargetLock,
    clock: Clock,
    stop: threading.Event,
    say: Callable[[str], None],
) -> None:
    """Remove revisions beyond the `keep` newest and folders that are no model; `say` what went and what could not.

    The current revision always stays, and so do those in use and those whose manifest cannot be read.
    """
    current = volume.current_revision()
    if current is None:
        say(f"no revision is removed: {volume.current} cannot be followed")
        return
    try:
        doomed = _doomed(volume, keep, current, say)
        held = held_revisions(volume, {folder.name for folder in doomed}, clock, stop) if doomed else set()
    except StagingError as error:
        # who reads what is not known now
        say(f"no revision is removed: {error.what}: {error.value}")
        return
    for folder in doomed:
        if folder.name in held:
            continue
        lock.check()
        trash = volume.staging / f"trash.{folder.name}.{lock.owner.nonce}"
        try:
            # out of sight first, so that no reader meets half of it
            folder.rename(trash)
            shutil.rmtree(trash)
        except OSError as error:
            say(_not_removed(folder, error))
        else:
            say(f"removed revision {folder.name}")


def _doomed(volume: Volume, keep: int, current: Path, say: Callable[[str], None]) -> list[Path]:
    """Folders that are not to be kept."""
    models: list[tuple[Path, Manifest]] = []
    rest: list[Path] = []
    for folder in entries(volume.revisions):
        manifest = read_manifest(folder)
        if manifest is not None:
            models.append((folder, manifest))
        elif not has_manifest(folder):
            rest.append(folder)
        elif folder.resolve() != current:
            # a fault that passes, or the work of a newer version: the model may be whole
            say(f"{folder} stays, its {MANIFEST_NAME} cannot be read; remove the folder if nobody needs it")
    models.sort(key=lambda model: (model[0].resolve() != current, -model[1].staged_at.timestamp()))
    old = [folder for folder, _ in models[keep:]]
    return [folder for folder in (*old, *rest) if folder.resolve() != current]


def sweep(volume: Volume, lock: TargetLock, say: Callable[[str], None]) -> None:
    """Remove what earlier runs left: partial files of other models, links and folders that were never renamed."""
    try:
        files = [
            *entries(volume.partials),
            *entries(volume.staging, "probe.*"),
            *entries(volume.target, ".current.*"),
            *(path for model in entries(volume.revisions) for path in entries(model, f".{MANIFEST_NAME}.*")),
        ]
        folders = entries(volume.staging, "trash.*")
    except StagingError as error:
        say(f"nothing is swept: {error.what}: {error.value}")
        return
    for path in files:
        # a successor's partial files are here as well
        lock.check()
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            say(_not_removed(path, error))
    for folder in folders:
        lock.check()
        shutil.rmtree(folder, ignore_errors=True)


def _not_removed(path: Path, error: OSError) -> str:
    # the model is published by then, so what stays costs room and no more
    return f"cannot remove {path}: {error.strerror}; the next run that changes the volume tries again"


def _verified(build: Build, name: str) -> FileRecord:
    record = build.record(name)
    if record is None:
        raise StagingError(
            Reason.CORRUPT, "file changed after it was verified", name, expected="nobody else writes"
        )
    return record


def _drop_strangers(folder: Path, names: list[str]) -> None:
    """A revision holds what its listing names and nothing else."""
    for path in folder.iterdir():
        if path.name not in names:
            path.unlink()


def _free_name(volume: Volume, revision: str) -> Path:
    """The revision's folder; a repaired one is published beside the damaged one, which readers may still have."""
    number = 1
    while (path := volume.revisions / (revision if number == 1 else f"{revision}-{number}")).exists():
        number += 1
    return path
