"""Fetches a list of files: starts workers and hashers, ends them together, and keeps the journals durable.

worker.py reads bytes from a source, hashing.py computes digests, schedule.py hands out the work.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass

from glm5_service.settings.staging import StagingSettings
from glm5_service.staging.clock import Clock
from glm5_service.staging.progress import Progress
from glm5_service.staging.reasons import StagingError, Stopped
from glm5_service.staging.records import RemoteFile
from glm5_service.staging.sources.base import Source
from glm5_service.staging.store.build import Build
from glm5_service.staging.store.lock import TargetLock
from glm5_service.staging.store.volume import Volume
from glm5_service.staging.transfer.blocks import BLOCK
from glm5_service.staging.transfer.halt import Halt
from glm5_service.staging.transfer.hashing import Hashing
from glm5_service.staging.transfer.landing import Windows
from glm5_service.staging.transfer.partial import Partial
from glm5_service.staging.transfer.patience import Patience, RateLimit
from glm5_service.staging.transfer.schedule import Transfers
from glm5_service.staging.transfer.worker import Parts, Worker

CHECKPOINT_SECONDS = 30.0
LEAST_PART_BYTES, PARTS_EACH = 8 << 20, 8
JOIN_SECONDS = 5.0


@dataclass(frozen=True)
class Place:
    """Where files are fetched to: a volume, the revision under construction, and the lock that is held."""

    volume: Volume
    build: Build
    lock: TargetLock


class Fetch:
    """One go at fetching `files`. Ends with all of them in the build, or raises with what came kept."""

    def __init__(
        self,
        settings: StagingSettings,
        sources: Mapping[str, Source],
        files: list[RemoteFile],
        place: Place,
        progress: Progress,
        clock: Clock,
    ) -> None:
        self._progress, self._clock, self._halt = progress, clock, Halt()
        halted = self._halt.asked
        self._partials = [Partial(place.volume.partials, file, place.lock.owner.nonce) for file in files]
        part_bytes = _part_bytes(self._partials, settings)
        self._transfers = Transfers(self._partials, part_bytes, settings.architecture, halted)
        self._hashing = Hashing(self._transfers, place.build, place.lock, progress, halted)
        self._patience = Patience(settings, clock, halted)
        self._windows = Windows(self._halt.fail)
        worker = Worker(
            Parts(
                settings=settings,
                sources=sources,
                transfers=self._transfers,
                hashing=self._hashing,
                windows=self._windows,
                patience=self._patience,
                limit=RateLimit(settings.rate_limit, clock, halted),
                lock=place.lock,
                progress=progress,
                clock=clock,
                halt=self._halt,
            )
        )
        thread, hashers = self._halt.thread, max(1, min(len(files), 2 * len(os.sched_getaffinity(0)), 4))
        self._threads = [thread(f"worker-{n}", worker.run) for n in range(settings.connections)]
        self._threads += [thread(f"hasher-{n}", self._hashing.catch_up) for n in range(hashers)]
        self._keeper = thread("keeper", self._keep)

    def run(self, stop: threading.Event) -> None:
        """Fetch and verify the files. Raises StagingError, SourceChanged, Stopped (when `stop` is set)."""
        for thread in (*self._threads, self._keeper):
            thread.start()
        while any(thread.is_alive() for thread in self._threads) and not self._halt.asked.is_set():
            if stop.wait(0.1):
                self._halt.fail(Stopped())
            self._progress.retries = self._patience.retried
            self._progress.tick()
        self._end()
        if self._halt.error is not None:
            raise self._halt.error

    def _end(self) -> None:
        self._halt.asked.set()
        # for all of them together: each may wait for a silent server, and who stops us does not wait long
        deadline = time.monotonic() + JOIN_SECONDS
        threads = (*self._threads, self._keeper)
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._windows.close()
        self._halt.over.set()
        self._save()
        # a thread that still waits for a silent server finds `over` set when it wakes and writes nothing;
        # its file stays open so that the number is not given to another file
        if not any(thread.is_alive() for thread in threads):
            for partial in self._partials:
                partial.close()

    def _save(self) -> None:
        """Make true for a crash of the machine, and for another one, what came since the keeper's last turn."""
        if self._keeper.is_alive():
            # the volume hangs in its hands, and would in ours
            return
        for partial in self._transfers.open_partials():
            try:
                partial.checkpoint()
            except StagingError as error:
                self._halt.fail(error)

    def _keep(self) -> None:
        """Every so often make the journals true for a crash of the machine as well."""
        while True:
            self._clock.pause(self._halt.asked, CHECKPOINT_SECONDS)
            for partial in self._transfers.open_partials():
                partial.checkpoint()


def _part_bytes(partials: list[Partial], settings: StagingSettings) -> int:
    """Bytes of one request: several for each connection, or at the end most of them have nothing to do."""
    missing = sum(end - start for partial in partials for start, end in partial.missing())
    even = max(LEAST_PART_BYTES, missing // (PARTS_EACH * settings.connections))
    return min(settings.part_bytes, even) // BLOCK * BLOCK
