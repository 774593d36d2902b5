"""The lock of a target. Exactly one stager works, even where flock does nothing and whatever the wall clock does.

The lock is a sequence of lease files: 00000001.json and up. The highest one counts. A stager takes a free or dead lock by
creating the next number, which succeeds for exactly one. A holder that was taken for dead sees the next number and stops.
The highest file is never removed, so a late rival finds it above its own and gives its own up.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from glm5_service.staging.clock import Clock
from glm5_service.staging.reasons import Reason, StagingError, Stopped
from glm5_service.staging.store import files
from glm5_service.staging.store.lease import (
    Lease,
    Owner,
    Watch,
    create_lease,
    free_lease,
    read_lease,
    this_owner,
    write_lease,
)
from glm5_service.staging.store.volume import entries, volume_error

BEATS_PER_LEASE = 6
POLL_SECONDS = 1.0
_NUMBER = re.compile(r"[0-9]{8,18}")


class TargetLock:
    """The right to change a target. Use as a context manager after `acquire`."""

    def __init__(self, folder: Path, clock: Clock, lease_seconds: float, stop: threading.Event) -> None:
        self._folder, self._clock, self._lease_seconds, self._stop = folder, clock, lease_seconds, stop
        self.owner = this_owner()
        self._number = 0
        self._beat = 0
        self._last_beat = 0.0
        self._ended = threading.Event()
        self._lost = threading.Event()
        self._thread = threading.Thread(target=self._beats, name="lock", daemon=True)

    def acquire(self, wait_seconds: float, waiting: Callable[[Owner | None], None]) -> None:
        """Take the lock; `waiting` is told who holds it. Raises StagingError(LOCKED) after `wait_seconds`, Stopped."""
        watch = Watch(self._clock, self._lease_seconds)
        deadline = self._clock.monotonic() + wait_seconds
        while True:
            number = self._highest()
            path = self._path(number)
            holder = read_lease(path) if number else None
            if number == 0 or watch.is_dead(path, holder):
                if self._create(number + 1):
                    return
                continue
            owner = holder.owner if holder else None
            if self._clock.monotonic() >= deadline:
                value = f"{owner.host} pid {owner.pid}" if owner else "an unreadable lock"
                raise StagingError(
                    Reason.LOCKED, f"another stager works on {self._folder.parent.parent}", value
                )
            waiting(owner)
            self._clock.pause(self._stop, POLL_SECONDS)

    def check(self) -> None:
        """Raise StagingError unless the lock is ours for sure (LOCK_LOST if it is not); cheap enough for every write."""
        # a process that slept (stopped, swapped, suspended) looks before it believes
        overdue = self._clock.monotonic() - self._last_beat > self._lease_seconds / 2
        if overdue and self._highest() != self._number:
            self._lost.set()
        if self._lost.is_set():
            raise StagingError(Reason.LOCK_LOST, "lock taken over by another stager", self._folder)

    def release(self) -> None:
        """Give the lock back; the file stays, marked free."""
        self._ended.set()
        self._thread.join()
        # what cannot be freed is found dead by others, and hides no error that ends the run
        with suppress(StagingError):
            if not self._lost.is_set() and self._highest() == self._number:
                free_lease(self._path(self._number), Lease(owner=self.owner, beat=self._beat, held=False))

    def __enter__(self) -> TargetLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _create(self, number: int) -> bool:
        try:
            if not create_lease(self._path(number), Lease(owner=self.owner, beat=0, held=True)):
                return False
            if self._highest() != number:
                # its file was gone already because others had come after it, or this process slept
                files.remove(self._path(number))
                return False
            self._number, self._last_beat = number, self._clock.monotonic()
            for old in self._numbers():
                if old < number:
                    files.remove(self._path(old))
        except OSError as error:
            raise volume_error(error, f"cannot lock {self._folder}") from error
        self._thread.start()
        return True

    def _beats(self) -> None:
        while not self._lost.is_set():
            try:
                self._clock.pause(self._ended, self._lease_seconds / BEATS_PER_LEASE)
            except Stopped:
                return
            try:
                if self._highest() != self._number:
                    self._lost.set()
                    return
                self._beat += 1
                write_lease(self._path(self._number), Lease(owner=self.owner, beat=self._beat, held=True))
                self._last_beat = self._clock.monotonic()
            except (OSError, StagingError):
                # a full or hanging volume: no heartbeat, so `check` grows careful and others may take over
                continue

    def _numbers(self) -> list[int]:
        stems = (path.stem for path in entries(self._folder, "*.json"))
        return [int(stem) for stem in stems if _NUMBER.fullmatch(stem)]

    def _highest(self) -> int:
        return max(self._numbers(), default=0)

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:08d}.json"
