"""Hands out the work of fetching: parts to workers, files to hashers, in the order of the files.

Knows nothing of HTTP or hashes; next hop: fetch.py.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field

from glm5_service.staging.faults import Stopped
from glm5_service.staging.partial import Partial


@dataclass(eq=False)
class Transfer:
    """One file under way. `sequential`: its server has no ranges, so one worker takes all of it."""

    partial: Partial
    parts: deque[tuple[int, int]] = field(default_factory=deque)
    sequential: bool = False
    damages: int = 0


@dataclass(eq=False)
class Claim:
    """The part of a file that one worker brings; `position` is how far it is."""

    transfer: Transfer
    position: int
    end: int
    epoch: int

    @property
    def is_stale(self) -> bool:
        """True once the file was started again, by another worker or for its digest."""
        return self.epoch != self.transfer.partial.epoch


class Transfers:
    """The files still to fetch. Thread-safe."""

    def __init__(self, partials: list[Partial], part_bytes: int, halt: threading.Event) -> None:
        self._part_bytes, self._halt = part_bytes, halt
        self._changed = threading.Condition()
        self._open = [Transfer(partial) for partial in partials]
        self._to_hash = deque(self._open)
        for transfer in self._open:
            self._cut(transfer)

    def claim(self) -> Claim | None:
        """The next part; waits while parts may still come back; None when every file is done. Raises Stopped."""
        with self._changed:
            while True:
                if self._halt.is_set():
                    raise Stopped
                for transfer in self._open:
                    if transfer.parts:
                        start, end = transfer.parts.popleft()
                        return Claim(transfer, start, end, transfer.partial.epoch)
                if not self._open:
                    return None
                self._changed.wait(0.5)

    def next_to_hash(self) -> Transfer | None:
        """The next file that no hasher follows yet; None if there is none."""
        with self._changed:
            return self._to_hash.popleft() if self._to_hash else None

    def open_partials(self) -> list[Partial]:
        with self._changed:
            return [transfer.partial for transfer in self._open]

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
            transfer.partial.restart()
            claim.position, claim.end, claim.epoch = 0, transfer.partial.file.size, transfer.partial.epoch
            return lost

    def start_again(self, transfer: Transfer) -> None:
        """Every byte of the file is to come again."""
        with self._changed:
            transfer.partial.restart()
            self._cut(transfer)
            self._changed.notify_all()

    def finish(self, transfer: Transfer) -> None:
        """The file is verified and gone from here."""
        with self._changed:
            self._open.remove(transfer)
            self._changed.notify_all()

    def _cut(self, transfer: Transfer) -> None:
        size = transfer.partial.file.size if transfer.sequential else self._part_bytes
        for start, end in transfer.partial.missing():
            transfer.parts.extend((at, min(at + size, end)) for at in range(start, end, size))
