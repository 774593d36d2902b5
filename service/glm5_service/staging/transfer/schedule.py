"""Hands out the work of fetching: parts of files to workers, and files that lag behind to hashers.

A worker stays with its file, then moves to the file with the fewest workers. With as many files as connections each file
arrives in order and is hashed as it arrives. This module knows neither HTTP nor the volume.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field

from glm5_service.staging.content import Content
from glm5_service.staging.reasons import Stopped
from glm5_service.staging.transfer.partial import Partial


@dataclass(eq=False)
class Transfer:
    """One file under way. `sequential`: its server has no ranges, so one worker takes all of it.

    `ranged`: a range was served in this run; `wholes`: answers in a row, to any worker, that were all of the file.
    """

    partial: Partial
    content: Content
    parts: deque[tuple[int, int]] = field(default_factory=deque)
    active: int = 0
    sequential: bool = False
    ranged: bool = False
    wholes: int = 0
    damages: int = 0
    is_done: bool = False
    hashing: threading.Lock = field(default_factory=threading.Lock)

    @property
    def is_complete(self) -> bool:
        """True once every byte is on the volume and was hashed."""
        size = self.partial.file.size
        return self.content.position == size == self.partial.frontier


@dataclass(eq=False)
class Claim:
    """The part of a file that one worker brings; `position` is how far it is, `wholes` as in the transfer."""

    transfer: Transfer
    position: int
    end: int
    epoch: int
    wholes: int = 0

    @property
    def is_stale(self) -> bool:
        """True once the file was started again, by another worker or for its digest."""
        return self.epoch != self.transfer.partial.epoch


class Transfers:
    """The files still to fetch. Thread-safe."""

    def __init__(
        self, partials: list[Partial], part_bytes: int, architecture: str, halt: threading.Event
    ) -> None:
        self._part_bytes, self._architecture, self._halt = part_bytes, architecture, halt
        self._changed = threading.Condition()
        self._open = [Transfer(partial, Content(partial.file, architecture)) for partial in partials]
        for transfer in self._open:
            self._cut(transfer)

    def claim(self, last: Claim | None) -> Claim | None:
        """The next part for the worker that brought `last`; waits while parts may still come back; None when every
        file is done. Raises Stopped."""
        with self._changed:
            while self._open:
                if self._halt.is_set():
                    raise Stopped
                ready = [transfer for transfer in self._open if transfer.parts]
                if ready:
                    return self._next(ready, last)
                self._changed.wait(0.5)
            return None

    def _next(self, ready: list[Transfer], last: Claim | None) -> Claim:
        if last is not None and last.transfer in ready and last.transfer.parts[0][0] == last.end:
            transfer, at = last.transfer, 0
        else:
            # of those the one with most to come, or it would be the last to end
            transfer = min(ready, key=lambda one: (one.active, -len(one.parts)))
            # the second worker of a file starts at its end, so that the first one's bytes stay in order
            at = -1 if transfer.active == 1 else 0
        start, end = transfer.parts[at]
        del transfer.parts[at]
        transfer.active += 1
        return Claim(transfer, start, end, transfer.partial.epoch)

    def release(self, claim: Claim) -> None:
        """The worker is through with the claim."""
        with self._changed:
            claim.transfer.active -= 1
            self._changed.notify_all()

    def next_lagging(self) -> Transfer | None:
        """A file with bytes that no worker hashed as they arrived, with its `hashing` lock held; None when all are
        done. Raises Stopped."""
        with self._changed:
            while self._open:
                if self._halt.is_set():
                    raise Stopped
                for transfer in self._open:
                    lags = transfer.partial.frontier > transfer.content.position
                    if (lags or transfer.is_complete) and transfer.hashing.acquire(blocking=False):
                        return transfer
                self._changed.wait(0.5)
            return None

    def open_partials(self) -> list[Partial]:
        with self._changed:
            return [transfer.partial for transfer in self._open]

    def ranges_work(self, claim: Claim) -> None:
        """The server answered `claim` with the range that was asked for."""
        with self._changed:
            claim.transfer.ranged, claim.transfer.wholes, claim.wholes = True, 0, 0

    def is_doubtful(self, claim: Claim, patience: int) -> bool:
        """All of the file came in place of a range. True if that is better asked again, at most `patience` times: a
        server behind a balancer may know ranges when its neighbour does not, and what is here would be lost."""
        transfer = claim.transfer
        with self._changed:
            transfer.wholes += 1
            claim.wholes += 1
            may_have_ranges = not transfer.sequential and (transfer.ranged or transfer.partial.done_bytes > 0)
            return may_have_ranges and min(transfer.wholes, claim.wholes) <= patience

    def take_whole(self, claim: Claim) -> int:
        """The server sends the file from byte 0 whatever is asked: `claim` becomes all of it.

        Returns the bytes thrown away. The claim is stale afterwards if another worker has the file already.
        """
        transfer = claim.transfer
        with self._changed:
            if claim.is_stale:
                return 0
            lost = transfer.partial.done_bytes
            transfer.sequential = True
            transfer.parts.clear()
            self._restart(transfer)
            claim.position, claim.end, claim.epoch = 0, transfer.partial.file.size, transfer.partial.epoch
            return lost

    def start_again(self, transfer: Transfer) -> None:
        """Every byte of the file is to come again; the caller holds its `hashing` lock."""
        with self._changed:
            self._restart(transfer)
            transfer.parts.clear()
            self._cut(transfer)
            self._changed.notify_all()

    def finish(self, transfer: Transfer) -> None:
        """The file is verified and gone from here."""
        with self._changed:
            transfer.is_done = True
            self._open.remove(transfer)
            self._changed.notify_all()

    def _restart(self, transfer: Transfer) -> None:
        transfer.partial.restart()
        transfer.content = Content(transfer.partial.file, self._architecture)

    def _cut(self, transfer: Transfer) -> None:
        size = transfer.partial.file.size if transfer.sequential else self._part_bytes
        for start, end in transfer.partial.missing():
            transfer.parts.extend((at, min(at + size, end)) for at in range(start, end, size))
