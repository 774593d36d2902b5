"""Hashes files under way: bytes that arrive in order at once, other bytes by reading them back from the volume.

A file whose digest matches enters the build. Any other file starts again. Next: store.build.Build.keep.
"""

from __future__ import annotations

import threading

from glm5_service.staging.progress import Progress
from glm5_service.staging.reasons import Reason, StagingError, Stopped
from glm5_service.staging.store.build import Build
from glm5_service.staging.store.lock import TargetLock
from glm5_service.staging.transfer.blocks import Window
from glm5_service.staging.transfer.schedule import Claim, Transfer, Transfers

READ_BACK_BYTES = 2 << 20
DAMAGES_ALLOWED = 1


class Hashing:
    """Called by every worker, and by threads of its own; a file's `hashing` lock says who works on its digest."""

    def __init__(
        self,
        transfers: Transfers,
        build: Build,
        lock: TargetLock,
        progress: Progress,
        halt: threading.Event,
    ) -> None:
        self._transfers, self._build, self._lock = transfers, build, lock
        self._progress, self._halt = progress, halt

    def take(self, claim: Claim, data: memoryview) -> None:
        """Hash bytes as they arrive if they are the next ones of their file; else a hasher will read them back."""
        transfer = claim.transfer
        if transfer.content.position != claim.position or not transfer.hashing.acquire(blocking=False):
            return
        try:
            content = transfer.content
            if not claim.is_stale and content.position == claim.position:
                content.take(data)
        except StagingError as error:
            self._damaged(transfer, error)
        finally:
            transfer.hashing.release()

    def catch_up(self) -> None:
        """Body of a thread: read back and hash what did not arrive in order. Raises Stopped, StagingError."""
        window = Window(READ_BACK_BYTES)
        while (transfer := self._transfers.next_lagging()) is not None:
            try:
                self._read_back(transfer, window)
            except BaseException:
                transfer.hashing.release()
                raise
            if transfer.is_complete:
                self._finish(transfer)
            else:
                transfer.hashing.release()

    def _read_back(self, transfer: Transfer, window: Window) -> None:
        """As far as the bytes are here; a volume that does not give them says nothing against the file."""
        content, epoch = transfer.content, transfer.partial.epoch
        while content.position < (frontier := transfer.partial.frontier):
            data = transfer.partial.read(window, content.position, frontier)
            if self._halt.is_set():
                raise Stopped
            if epoch != transfer.partial.epoch or not data:
                return
            try:
                content.take(data)
            except StagingError as error:
                self._damaged(transfer, error)
                return
            self._progress.hashed(len(data))

    def finish_if_complete(self, transfer: Transfer) -> None:
        """Let a file into the build whose last byte came, unless another thread is at it."""
        if transfer.is_complete and transfer.hashing.acquire(blocking=False):
            self._finish(transfer)

    def _finish(self, transfer: Transfer) -> None:
        """Let a file into the build whose bytes are all here; the caller acquired `hashing`, it is released here."""
        try:
            if transfer.is_done or not transfer.is_complete:
                return
            sha256 = transfer.content.finish()
            self._lock.check()
            file = transfer.partial.file
            stat = transfer.partial.move_to(self._build.path(file.name))
            self._build.keep(file, sha256, stat)
            self._progress.files[file.name] = "verified"
            self._transfers.finish(transfer)
        except StagingError as error:
            if error.reason is not Reason.CORRUPT:
                raise
            self._damaged(transfer, error)
        finally:
            transfer.hashing.release()

    def _damaged(self, transfer: Transfer, error: StagingError) -> None:
        """Start the file again; raise the second time, because then it is not the transfer."""
        transfer.damages += 1
        if transfer.damages > DAMAGES_ALLOWED:
            transfer.partial.restart()
            raise error
        self._progress.lost(transfer.partial.done_bytes)
        self._progress.say(f"{transfer.partial.file.name} starts at byte 0: {error.what} {error.value}")
        self._transfers.start_again(transfer)
