"""Brings missing bytes: workers read ranges into partial files, hashers follow behind and let verified files in.

A file is hashed in order by a thread that reads it back just behind the writers, out of the page cache, so parts may
arrive in any order and SHA-256 costs no second pass over the disk. Next hop: build.Build.accept.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping

from glm5_service.settings.staging import StagingSettings
from glm5_service.staging.build import Build
from glm5_service.staging.clock import Clock
from glm5_service.staging.digests import Hasher
from glm5_service.staging.faults import Stopped, Transient
from glm5_service.staging.lock import TargetLock
from glm5_service.staging.partial import Partial
from glm5_service.staging.peek import PEEK_BYTES, peek
from glm5_service.staging.progress import Progress
from glm5_service.staging.reasons import Reason, StagingError
from glm5_service.staging.records import RemoteFile
from glm5_service.staging.retry import Patience, RateLimit
from glm5_service.staging.sources.base import Source, Stream
from glm5_service.staging.transfers import Claim, Transfer, Transfers
from glm5_service.staging.volume import Volume

READ_BYTES = 1 << 20
JOURNAL_BYTES = 1 << 20
CHECKPOINT_SECONDS = 30.0
DAMAGES_ALLOWED = 1
JOIN_SECONDS = 5.0


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
        self._halt = threading.Event()
        self._patience = Patience(settings, clock, self._halt)
        self._limit = RateLimit(settings.rate_limit, clock, self._halt)
        # small reads under a rate limit, or one read would overdraw it for a long time
        self._read_bytes = (
            min(READ_BYTES, max(4096, settings.rate_limit // 10)) if settings.rate_limit else READ_BYTES
        )
        self._streams: set[Stream] = set()
        self._error: BaseException | None = None
        self._guard = threading.Lock()

    def run(self, files: list[RemoteFile], stop: threading.Event) -> None:
        """Fetch and verify `files`. Raises StagingError, SourceChanged, Stopped (when `stop` is set)."""
        partials = [Partial(self._volume.partials, file, self._lock.owner.nonce) for file in files]
        self._transfers = Transfers(partials, self._settings.part_bytes, self._halt)
        hashers = min(len(files), max(1, len(os.sched_getaffinity(0))), 4)
        keeper = self._thread("keeper", self._keep)
        threads = [self._thread(f"worker-{n}", self._work) for n in range(self._settings.connections)]
        threads += [self._thread(f"hasher-{n}", self._follow) for n in range(hashers)]
        for thread in (*threads, keeper):
            thread.start()
        while any(thread.is_alive() for thread in threads) and not self._halt.is_set():
            if stop.wait(0.1):
                self._fail(Stopped())
            self._progress.retries = self._patience.retried
            self._progress.tick()
        self._end([*threads, keeper], partials)
        if self._error is not None:
            raise self._error

    def _end(self, threads: list[threading.Thread], partials: list[Partial]) -> None:
        self._halt.set()
        for thread in threads:
            thread.join(JOIN_SECONDS)
        # a thread that still waits for a silent server finds `halt` set when it wakes and touches nothing;
        # its file stays open so that the number is not given to another file
        if not any(thread.is_alive() for thread in threads):
            for partial in partials:
                partial.close()

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

    # workers

    def _work(self) -> None:
        while (claim := self._transfers.claim()) is not None:
            attempt = 0
            file = claim.transfer.partial.file
            while claim.position < claim.end and not claim.is_stale:
                self._patience.wait_turn()
                before = claim.position
                try:
                    self._copy(claim)
                except Transient as fault:
                    # without ranges the next attempt starts at byte 0, so progress is no progress
                    has_progressed = claim.position > before and not claim.transfer.sequential
                    attempt = 1 if has_progressed else attempt + 1
                    self._progress.say(
                        f"{file.name} at byte {claim.position}: {fault.sentence}, attempt {attempt}"
                    )
                    self._patience.failed(fault, attempt, f"fetching {file.name}")

    def _copy(self, claim: Claim) -> None:
        """One request's worth of a part."""
        file = claim.transfer.partial.file
        stream = self._sources[file.name].open(file, claim.position, claim.end)
        with self._guard:
            self._streams.add(stream)
        try:
            if stream.whole and (claim.position, claim.end) != (0, file.size):
                lost = self._transfers.take_whole(claim)
                if claim.is_stale:
                    return
                self._progress.lost(lost)
                self._progress.say(f"{file.name} starts at byte 0: its server does not serve ranges")
            self._pump(stream, claim)
        finally:
            with self._guard:
                self._streams.discard(stream)
            stream.close(finished=claim.position == claim.end)

    def _pump(self, stream: Stream, claim: Claim) -> None:
        partial, epoch = claim.transfer.partial, claim.epoch
        journalled = claim.position
        pace = _Pace(self._settings, self._clock)
        try:
            while claim.position < claim.end:
                data = stream.read(min(self._read_bytes, claim.end - claim.position))
                if self._halt.is_set():
                    raise Stopped
                if claim.is_stale:
                    return
                if not data:
                    raise Transient(Reason.UNREACHABLE, "body ended early")
                self._lock.check()
                partial.write(data, claim.position)
                claim.position += len(data)
                if claim.position - journalled >= JOURNAL_BYTES:
                    partial.written(journalled, claim.position, epoch)
                    journalled = claim.position
                self._progress.fetched(len(data))
                pace.check(len(data), self._limit.spend(len(data)))
        finally:
            partial.written(journalled, claim.position, epoch)

    # hashers

    def _follow(self) -> None:
        buffer = memoryview(bytearray(READ_BYTES))
        while (transfer := self._transfers.next_to_hash()) is not None:
            while not self._hash(transfer, buffer):
                continue

    def _hash(self, transfer: Transfer, buffer: memoryview) -> bool:
        """Follow one file to its end; False if it was started again on the way."""
        partial, file = transfer.partial, transfer.partial.file
        epoch, hasher, position = partial.epoch, Hasher(file), 0
        self._progress.files[file.name] = "fetching"
        while position < file.size:
            least = min(PEEK_BYTES, file.size) - 1 if position == 0 else position
            frontier = partial.wait_frontier(least, 0.5)
            if self._halt.is_set():
                raise Stopped
            if partial.epoch != epoch:
                return False
            if frontier <= least:
                continue
            count = partial.read_into(buffer[: frontier - position], position)
            if position == 0 and file.is_gguf:
                try:
                    peek(file.name, bytes(buffer[: min(count, PEEK_BYTES)]), self._settings.architecture)
                except StagingError as error:
                    self._damaged(transfer, error)
                    return False
            hasher.update(buffer[:count])
            self._progress.hashed(count)
            position += count
        if fault := hasher.fault():
            self._damaged(transfer, StagingError(Reason.CORRUPT, f"digest of {file.name}", fault))
            return False
        self._lock.check()
        self._build.accept(partial, hasher.sha256)
        self._progress.files[file.name] = "verified"
        self._transfers.finish(transfer)
        return True

    def _damaged(self, transfer: Transfer, error: StagingError) -> None:
        """Start the file again; raise the second time, because then it is not the transfer."""
        transfer.damages += 1
        if transfer.damages > DAMAGES_ALLOWED:
            transfer.partial.restart()
            raise error
        self._progress.lost(transfer.partial.done_bytes)
        self._progress.say(f"{transfer.partial.file.name} starts at byte 0: {error.what} {error.value}")
        self._transfers.start_again(transfer)

    # keeper

    def _keep(self) -> None:
        """Every so often make the journals true for a crash of the machine as well."""
        while True:
            self._clock.pause(self._halt, CHECKPOINT_SECONDS)
            for partial in self._transfers.open_partials():
                partial.checkpoint()


class _Pace:
    """Tells a connection that is alive but too slow; time spent in our own rate limit does not count."""

    def __init__(self, settings: StagingSettings, clock: Clock) -> None:
        self._clock, self._window = clock, settings.stall_seconds
        self._least = settings.stall_bytes_per_second * settings.stall_seconds
        self._since, self._count = clock.monotonic(), 0

    def check(self, count: int, waited: float) -> None:
        self._count += count
        self._since += waited
        now = self._clock.monotonic()
        if now - self._since < self._window:
            return
        if self._count < self._least:
            raise Transient(Reason.STALLED, f"{self._count} bytes in {now - self._since:.0f} s")
        self._since, self._count = now, 0
