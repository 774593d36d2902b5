"""Finds the revision of a staged model once per start, and keeps it from being pruned while it is served."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from glm5_service.settings import Settings
from glm5_service.staging.reasons import StagingError
from glm5_service.staging.store.inuse import hold
from glm5_service.staging.store.volume import Volume

# the settings of the model that may lie in a staged folder; all of one folder are of one revision
PATHS = ("path", "hf_folder", "chat_template")
log = logging.getLogger("glm5")


@contextmanager
def held(settings: Settings) -> Iterator[Settings]:
    """The settings with paths at or below a staged model's `current` led to its revision, which is held meanwhile.

    Other paths stay as they are. Where no lease can be written, a warning says so and the revision is not held.
    """
    with ExitStack() as holds:
        folders: dict[Path, Path] = {}
        paths: dict[str, Path] = {}
        for name in PATHS:
            path: Path | None = getattr(settings.model, name)
            link = _staged_link(path.absolute()) if path else None
            if path is None or link is None:
                continue
            target = link.parent.resolve()
            if target not in folders:
                folders[target] = _hold(target, holds)
            paths[name] = folders[target] / path.absolute().relative_to(link)
        yield settings.model_copy(update={"model": settings.model.model_copy(update=paths)})


def _staged_link(path: Path) -> Path | None:
    """Return the link `current` of a staged model if `path` is that link or lies below it."""
    for link in (path, *path.parents):
        volume = Volume(link.parent)
        if link == volume.current and link.is_symlink() and volume.revisions.is_dir():
            return link if volume.current_revision() else None
    return None


def _hold(target: Path, holds: ExitStack) -> Path:
    try:
        folder = holds.enter_context(hold(target))
    except StagingError as error:
        folder = Volume(target).current.resolve()
        log.warning("revision %s is not held, whoever stages here may prune it: %s", folder.name, error)
    return folder
