"""Brings missing bytes: workers read ranges into partial files, and the journals are made durable every so often.

Looks into no byte; next hop: hashing.py, which does.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping

from glm5_service.settings.staging import StagingSettings
from glm5_service.staging.blocks import BLOCK, Window
from glm5_service.staging.build import Build
from glm5_service.staging.clock import Clock
from glm5_service.staging.faults import Stopped, Transient
from glm5_service.staging.hashing import Hashing
from glm5_service.staging.landing import WINDOW_BYTES, Landing, Windows
from glm5_service.staging.lock import TargetLock
from glm5_service.staging.pace import Pace
from glm5_service.staging.partial import Partial
from glm5_service.staging.progress import Progress
from glm5_service.staging.reasons import Reason, StagingError
from glm5_service.staging.records import RemoteFile
from glm5_service.staging.retry import Patience, RateLimit
from glm5_service.staging.sources.base import Source, Stream
from glm5_service.staging.transfers import Claim, Transfers
from glm5_service.staging.volume import Volume

# a slow connection's bytes are written and journalled at least so often
FLUSH_SECONDS = 1.0
CHECKPOINT_SECONDS = 30.0
LEAST_PART_BYTES, PARTS_EACH = 8 << 20, 8
JOIN_SECONDS = 5.0
# so often in a row a server that served ranges, or from which bytes are here, is asked again when it ignores one
WHOLES_DOUBTED = 3


class Fetch:
    """One go at fetching a list of files. Ends with all of them in the build, or raises with what came kept."""

    def __init__(
        self,
        settings: StagingSettings,
        sources: Mapping[str, Source],
        volume: Volume,
        build: Build,
        lock: TargetLock,
        progress: Progress,
        clock: Clock,
    ) -> None:
        self._settings, self._sources, self._build = settings, sources, build
        self._volume, self._lock, self._progress, self._clock = volume, lock, progress, clock
        self._halt, self._over = threading.Event(), threading.Event()
        self._patience = Patience(settings, clock, self._halt)
        self._limit = RateLimit(settings.rate_limit, clock, self._halt)
        # small reads under a rate limit, or one read would overdraw it for a long time
        self._read_bytes = (
            min(WINDOW_BYTES, max(4096, settings.rate_limit // 10)) if settings.rate_limit else WINDOW_BYTES
        )
        self._streams: set[Stream] = set()
        self._error: BaseException | None = None
        self._guard = threading.Lock()

    def run(self, files: list[RemoteFile], stop: threading.Event) -> None:
        """Fetch and verify `files`. Raises StagingError, SourceChanged, Stopped (when `stop` is set)."""
        settings = self._settings
        partials = [Partial(self._volume.partials, file, self._lock.owner.nonce) for file in files]
        missing = sum(end - start for partial in partials for start, end in partial.missing())
        # several parts for each connection, or at the end most of them have nothing to do
        even = max(LEAST_PART_BYTES, missing // (PARTS_EACH * settings.connections))
        part_bytes = min(settings.part_bytes, even) // BLOCK * BLOCK
        self._transfers = Transfers(partials, part_bytes, settings.architecture, self._halt)
        self._hashing = Hashing(self._transfers, self._build, self._lock, self._progress, self._halt)
        hashers = max(1, min(len(files), 2 * len(os.sched_getaffinity(0)), 4))
        self._windows = Windows(self._fail)
        keeper = self._thread("keeper", self._keep)
        threads = [self._thread(f"worker-{n}", self._work) for n in range(settings.connections)]
        threads += [self._thread(f"hasher-{n}", self._hashing.catch_up) for n in range(hashers)]
        for thread in (*threads, keeper):
            thread.start()
        while any(thread.is_alive() for thread in threads) and not self._halt.is_set():
            if stop.wait(0.1):
                self._fail(Stopped())
            self._progress.retries = self._patience.retried
            self._progress.tick()
        self._end(threads, keeper, partials)
        if self._error is not None:
            raise self._error

    def _end(
        self, threads: list[threading.Thread], keeper: threading.Thread, partials: list[Partial]
    ) -> None:
        self._halt.set()
        # for all of them together: each may wait for a silent server, and who stops us does not wait long
        deadline = time.monotonic() + JOIN_SECONDS
        for thread in (*threads, keeper):
            thread.join(max(0.0, deadline - time.monotonic()))
        self._windows.close()
        self._over.set()
        self._save(keeper)
        # a thread that still waits for a silent server finds `over` set when it wakes and writes nothing;
        # its file stays open so that the number is not given to another file
        if not any(thread.is_alive() for thread in (*threads, keeper)):
            for partial in partials:
                partial.close()

    def _save(self, keeper: threading.Thread) -> None:
        """Make true for a crash of the machine, and for another one, what came since the keeper's last turn."""
        if keeper.is_alive():
            # the volume hangs in its hands, and would in ours
            return
        for partial in self._transfers.open_partials():
            try:
                partial.checkpoint()
            except StagingError as error:
                self._fail(error)

    def _thread(self, name: str, body: Callable[[], None]) -> threading.Thread:
        def guarded() -> None:
            try:
                body()
            except Stopped:
                pass
            except BaseException as error:
                self._fail(error)

        return threading.Thread(target=guarded, name=name, daemon=True)

    def _fail(self, error: BaseException) -> None:
        """Keep the first error and bring everything to a halt."""
        with self._guard:
            self._error = self._error or error
            self._halt.set()
            streams = list(self._streams)
        for stream in streams:
            stream.abort()

    def _work(self) -> None:
        claim: Claim | None = None
        while (claim := self._transfers.claim(claim)) is not None:
            try:
                self._bring(claim)
            finally:
                self._transfers.release(claim)
            self._hashing.finish_if_complete(claim.transfer)

    def _bring(self, claim: Claim) -> None:
        """One part, in as many requests as it takes."""
        attempt, file = 0, claim.transfer.partial.file
        while claim.position < claim.end and not claim.is_stale:
            self._patience.wait_turn()
            before = claim.position
            try:
                self._copy(claim)
                attempt = 0
            except Transient as fault:
                # without ranges the next attempt starts at byte 0, so progress is no progress
                has_progressed = claim.position > before and not claim.transfer.sequential
                attempt = 1 if has_progressed else attempt + 1
                self._progress.say(
                    f"{file.name} at byte {claim.position}: {fault.sentence}, attempt {attempt}"
                )
                self._patience.failed(fault, attempt, f"fetching {file.name}")

    def _copy(self, claim: Claim) -> None:
        """One request."""
        file = claim.transfer.partial.file
        stream = self._sources[file.name].open(file, claim.position, claim.end)
        with self._guard:
            self._streams.add(stream)
        try:
            if not stream.whole:
                self._transfers.ranges_work(claim)
            elif (claim.position, claim.end) != (0, file.size) and not self._take_whole(claim):
                return
            self._pump(stream, claim)
        finally:
            with self._guard:
                self._streams.discard(stream)
            stream.close(finished=stream.ended or claim.position == claim.end)

    def _take_whole(self, claim: Claim) -> bool:
        """The server sends all of the file: True if the claim is all of it now, False if it is stale."""
        name = claim.transfer.partial.file.name
        if self._transfers.is_doubtful(claim, min(WHOLES_DOUBTED, self._settings.retries)):
            raise Transient(Reason.REFUSED, "whole file in answer to a range")
        lost = self._transfers.take_whole(claim)
        if claim.is_stale:
            return False
        self._progress.lost(lost)
        self._progress.say(f"{name} starts at byte 0: its server does not serve ranges")
        return True

    def _pump(self, stream: Stream, claim: Claim) -> None:
        pace = Pace(self._settings, self._clock)
        landing = Landing(self._windows, claim.transfer.partial, claim.epoch, claim.position)
        try:
            while claim.position < claim.end and not claim.is_stale:
                stream.wait(FLUSH_SECONDS)
                with landing.window() as window:
                    count = self._receive(stream, claim, window)
                if count:
                    self._progress.fetched(count)
                    waited = self._limit.spend(count)
                    if stream.ended or claim.position == claim.end:
                        # a server may answer with less than was asked for; what is all here is not too slow
                        break
                    pace.check(count, waited)
        finally:
            if not self._over.is_set():
                landing.drain()

    def _receive(self, stream: Stream, claim: Claim, window: Window) -> int:
        """Bytes that went from the stream into the window."""
        room = window.room[: min(self._read_bytes, claim.end - claim.position)]
        count = stream.read_into(room)
        if self._halt.is_set():
            raise Stopped
        if count is None or claim.is_stale:
            return 0
        if not count:
            raise Transient(Reason.UNREACHABLE, "body ended early")
        self._lock.check()
        self._hashing.take(claim, room[:count])
        window.filled(count)
        claim.position += count
        return count

    def _keep(self) -> None:
        """Every so often make the journals true for a crash of the machine as well."""
        while True:
            self._clock.pause(self._halt, CHECKPOINT_SECONDS)
            for partial in self._transfers.open_partials():
                partial.checkpoint()
