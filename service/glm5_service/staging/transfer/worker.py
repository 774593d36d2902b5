"""One connection's work: takes a part of a file, requests it from the source, and repeats failed requests.

Next: landing.py writes the bytes, and hashing.py hashes them as they pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from glm5_service.settings.staging import StagingSettings
from glm5_service.staging.clock import Clock
from glm5_service.staging.progress import Progress
from glm5_service.staging.reasons import Reason, Transient
from glm5_service.staging.sources.base import Source, Stream
from glm5_service.staging.sources.http.pace import Pace
from glm5_service.staging.store.lock import TargetLock
from glm5_service.staging.transfer.blocks import Window
from glm5_service.staging.transfer.halt import Halt
from glm5_service.staging.transfer.hashing import Hashing
from glm5_service.staging.transfer.landing import WINDOW_BYTES, Landing, Windows
from glm5_service.staging.transfer.patience import Patience, RateLimit
from glm5_service.staging.transfer.schedule import Claim, Transfers

# a slow connection's bytes are written and journalled at least so often
FLUSH_SECONDS = 1.0
# so often in a row a server that served ranges, or from which bytes are here, is asked again when it ignores one
WHOLES_DOUBTED = 3


@dataclass(frozen=True)
class Parts:
    """What all workers of one fetch share."""

    settings: StagingSettings
    sources: Mapping[str, Source]
    """Source of each file by its name."""
    transfers: Transfers
    hashing: Hashing
    windows: Windows
    patience: Patience
    limit: RateLimit
    lock: TargetLock
    progress: Progress
    clock: Clock
    halt: Halt


class Worker:
    """Brings parts of files until none is left."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        rate = parts.settings.rate_limit
        # small reads under a rate limit, or one read would overdraw it for a long time
        self._read_bytes = min(WINDOW_BYTES, max(4096, rate // 10)) if rate else WINDOW_BYTES

    def run(self) -> None:
        """Body of a thread. Raises StagingError, SourceChanged, Stopped."""
        parts, claim = self._parts, None
        while (claim := parts.transfers.claim(claim)) is not None:
            try:
                self._bring(claim)
            finally:
                parts.transfers.release(claim)
            parts.hashing.finish_if_complete(claim.transfer)

    def _bring(self, claim: Claim) -> None:
        """One part, in as many requests as it takes."""
        attempt, name, parts = 0, claim.transfer.partial.file.name, self._parts
        while claim.position < claim.end and not claim.is_stale:
            parts.patience.wait_turn()
            before = claim.position
            try:
                self._copy(claim)
                attempt = 0
            except Transient as fault:
                # without ranges the next attempt starts at byte 0, so progress is no progress
                has_progressed = claim.position > before and not claim.transfer.sequential
                attempt = 1 if has_progressed else attempt + 1
                parts.progress.say(f"{name} at byte {claim.position}: {fault.sentence}, attempt {attempt}")
                parts.patience.failed(fault, attempt, f"fetching {name}")

    def _copy(self, claim: Claim) -> None:
        """One request."""
        file = claim.transfer.partial.file
        stream = self._parts.sources[file.name].open(file, claim.position, claim.end)
        try:
            with self._parts.halt.waking(stream):
                if not stream.whole:
                    self._parts.transfers.ranges_work(claim)
                elif (claim.position, claim.end) != (0, file.size) and not self._take_whole(claim):
                    return
                self._pump(stream, claim)
        finally:
            stream.close(finished=stream.ended or claim.position == claim.end)

    def _take_whole(self, claim: Claim) -> bool:
        """The server sends all of the file: True if the claim is all of it now, False if it is stale."""
        name, parts = claim.transfer.partial.file.name, self._parts
        if parts.transfers.is_doubtful(claim, min(WHOLES_DOUBTED, parts.settings.retries)):
            raise Transient(Reason.REFUSED, "whole file in answer to a range")
        lost = parts.transfers.take_whole(claim)
        if claim.is_stale:
            return False
        parts.progress.lost(lost)
        parts.progress.say(f"{name} starts at byte 0: its server does not serve ranges")
        return True

    def _pump(self, stream: Stream, claim: Claim) -> None:
        parts = self._parts
        pace = Pace(parts.settings, parts.clock)
        landing = Landing(parts.windows, claim.transfer.partial, claim.epoch, claim.position)
        try:
            while claim.position < claim.end and not claim.is_stale:
                stream.wait(FLUSH_SECONDS)
                with landing.window() as window:
                    count = self._receive(stream, claim, window)
                if count:
                    parts.progress.fetched(count)
                    waited = parts.limit.spend(count)
                    if stream.ended or claim.position == claim.end:
                        # a server may answer with less than was asked for; what is all here is not too slow
                        break
                    pace.check(count, waited)
        finally:
            if not parts.halt.over.is_set():
                landing.drain()

    def _receive(self, stream: Stream, claim: Claim, window: Window) -> int:
        """Bytes that went from the stream into the window."""
        room = window.room[: min(self._read_bytes, claim.end - claim.position)]
        count = stream.read_into(room)
        self._parts.halt.check()
        if count is None or claim.is_stale:
            return 0
        if not count:
            raise Transient(Reason.UNREACHABLE, "body ended early")
        self._parts.lock.check()
        self._parts.hashing.take(claim, room[:count])
        window.filled(count)
        claim.position += count
        return count
