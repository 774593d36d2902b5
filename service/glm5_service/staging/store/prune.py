"""Removes what is no longer kept: old revisions, and what earlier runs left behind."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from glm5_service.contracts.manifest import MANIFEST_NAME, Manifest
from glm5_service.staging.clock import Clock
from glm5_service.staging.reasons import StagingError
from glm5_service.staging.store import files
from glm5_service.staging.store.inuse import held_revisions
from glm5_service.staging.store.lock import TargetLock
from glm5_service.staging.store.manifest import has_manifest, models_in, read_manifest
from glm5_service.staging.store.volume import Volume, entries


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
            files.remove_tree(trash)
        except OSError as error:
            say(_not_removed(folder, error))
        else:
            say(f"removed revision {folder.name}")


def sweep(volume: Volume, lock: TargetLock, say: Callable[[str], None]) -> None:
    """Remove what earlier runs left: partial files of other models, links and folders that were never renamed."""
    try:
        strays = [
            *entries(volume.partials),
            *entries(volume.staging, "probe.*"),
            *entries(volume.target, ".current.*"),
            *(path for model in models_in(volume) for path in entries(model, f".{MANIFEST_NAME}.*")),
        ]
        trash = entries(volume.staging, "trash.*")
    except StagingError as error:
        say(f"nothing is swept: {error.what}: {error.value}")
        return
    for path in strays:
        # a successor's partial files are here as well
        lock.check()
        try:
            files.remove(path)
        except OSError as error:
            say(_not_removed(path, error))
    for folder in trash:
        lock.check()
        with suppress(OSError):
            files.remove_tree(folder)


def _doomed(volume: Volume, keep: int, current: Path, say: Callable[[str], None]) -> list[Path]:
    """Folders that are not to be kept."""
    models: list[tuple[Path, Manifest]] = []
    rest: list[Path] = []
    for folder in models_in(volume):
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


def _not_removed(path: Path, error: OSError) -> str:
    # the model is published by then, so what stays costs room and no more
    return f"cannot remove {path}: {error.strerror}; the next run that changes the volume tries again"
