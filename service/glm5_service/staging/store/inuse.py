"""A reader's lease on the published revision. A held revision is never pruned.

The engine calls `hold` for its whole life. The stager asks `held_revisions` before it removes a revision.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from glm5_service.staging.clock import Clock
from glm5_service.staging.reasons import Reason, StagingError, Stopped
from glm5_service.staging.store import files
from glm5_service.staging.store.lease import (
    Lease,
    Owner,
    Watch,
    read_lease,
    require_lease,
    this_owner,
    write_lease,
)
from glm5_service.staging.store.volume import Volume, entries, volume_error

BEAT_SECONDS = 10.0
DEAD_AFTER_SECONDS = 3 * BEAT_SECONDS


@contextmanager
def hold(target: Path, clock: Clock | None = None) -> Iterator[Path]:
    """Resolve `target/current`, keep that revision from being pruned, and give its folder.

    Raises StagingError: NOT_FOUND without a published model, READ_ONLY where the lease cannot be written.
    """
    volume, clock, owner, ended = Volume.at(target), clock or Clock(), this_owner(), threading.Event()

    def beat() -> None:
        for count in range(1, 1 << 62):
            try:
                clock.pause(ended, BEAT_SECONDS)
                write_lease(path, Lease(owner=owner, beat=count, held=True))
            except Stopped:
                return
            except OSError:
                continue

    revision, path = _lease_current(volume, owner)
    thread = threading.Thread(target=beat, name="in-use", daemon=True)
    thread.start()
    try:
        yield revision
    finally:
        ended.set()
        thread.join()
        # a volume that is gone by now is no failure of the reader; its lease dies by itself
        with suppress(OSError):
            files.remove(path)


def _lease_current(volume: Volume, owner: Owner) -> tuple[Path, Path]:
    """The current revision and the lease on it, written. Raises StagingError."""
    while True:
        revision = volume.current_revision()
        if revision is None:
            raise StagingError(Reason.NOT_FOUND, "no published model", volume.current)
        path = volume.in_use / f"{revision.name}~{owner.nonce}.json"
        try:
            files.make_folder(volume.in_use)
            write_lease(path, Lease(owner=owner, beat=0, held=True))
        except OSError as error:
            raise volume_error(error, f"cannot write {path}") from error
        # a switch between reading the link and writing the lease could have pruned it: look again
        if volume.current_revision() == revision:
            return revision, path
        files.remove(path)


def held_revisions(volume: Volume, names: set[str], clock: Clock, stop: threading.Event) -> set[str]:
    """Which of the revisions `names` are in use, or may be. Waits until each lease has beaten once or proved dead. Raises
    StagingError if the volume does not list the leases."""
    watch = Watch(clock, DEAD_AFTER_SECONDS)
    leases = {path: read_lease(path) for path in entries(volume.in_use, "*.json") if _revision(path) in names}
    living: set[str] = set()
    while True:
        for path, first in list(leases.items()):
            try:
                lease = require_lease(path)
            except StagingError:
                # nobody can say that its reader is gone
                living.add(_revision(path))
                del leases[path]
                continue
            if watch.is_dead(path, lease):
                with suppress(OSError):
                    files.remove(path)
            elif lease == first:
                continue
            elif lease is not None:
                living.add(_revision(path))
            del leases[path]
        if not leases:
            return living
        clock.pause(stop, BEAT_SECONDS / 4)


def _revision(path: Path) -> str:
    return path.name.partition("~")[0]
