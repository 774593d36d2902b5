"""A file under way: its bytes and its journal on the volume, under names of this process, shared by the workers.

It never has its final name. Next: schedule.py, which hands out its missing parts.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from glm5_service.staging.records import RemoteFile
from glm5_service.staging.store import files
from glm5_service.staging.store.lease import boot_id
from glm5_service.staging.store.volume import entries, volume_error
from glm5_service.staging.transfer.blocks import BlockFile, Window
from glm5_service.staging.transfer.journal import Coverage, Entry, Journal, read_journal


def leftovers(folder: Path, name: str) -> list[tuple[Path, Path]]:
    """Partial files of `name` and their journals, from any process."""
    pairs = []
    for data in entries(folder, "*.partial"):
        journal = data.with_suffix(".journal")
        if data.name.rsplit(".", 2)[0] == name and not (data.is_symlink() or journal.is_symlink()):
            pairs.append((data, journal))
    return pairs


def best_leftover(folder: Path, file: RemoteFile) -> tuple[Path, Entry] | None:
    """The partial of this very file that has most of it; those of another version of it do not count."""
    best: tuple[Path, Entry] | None = None
    for data, journal in leftovers(folder, file.name):
        entry = read_journal(journal, boot_id())
        if entry is None or not entry.is_about(file):
            continue
        if best is None or entry.coverage.total > best[1].coverage.total:
            best = (data, entry)
    return best


def drop_foreign(folder: Path, listed: Iterable[RemoteFile], say: Callable[[str], None]) -> None:
    """Remove partial files that none of `listed` can continue, before room is counted; `say` which and why."""
    wanted = {file.name: file for file in listed}
    for data in entries(folder, "*.partial"):
        file, journal = wanted.get(data.name.rsplit(".", 2)[0]), data.with_suffix(".journal")
        if data.is_symlink() or journal.is_symlink():
            why = "it is a symbolic link"
        elif file is None:
            why = "no file of this model"
        elif (entry := read_journal(journal, boot_id())) is None:
            why = "its journal is missing or damaged"
        elif not entry.is_about(file):
            why = "of another version of the file"
        else:
            continue
        say(f"{data.name} is dropped: {why}")
        try:
            files.remove(journal)
            files.remove(data)
        except OSError as error:
            raise volume_error(error, f"cannot remove {data.name}") from error


class Partial:
    """One file under way. Thread-safe."""

    def __init__(self, folder: Path, file: RemoteFile, owner: str) -> None:
        """Take over the best leftover under a name of our own, drop the others; the caller holds the lock."""
        self.file = file
        self.path = folder / f"{file.name}.{owner}.partial"
        self.epoch = 0
        self._journal_path = self.path.with_suffix(".journal")
        self._guard = threading.Lock()
        try:
            self._coverage = self._adopt(folder)
            self._data = BlockFile(self.path)
            os.ftruncate(self._data.fd, file.size)
            # of what the last run wrote only the page cache may know; the new journal calls all of it durable
            self._data.sync()
            self._journal = Journal(self._journal_path, file, self._coverage, boot_id())
        except OSError as error:
            raise volume_error(error, f"cannot start {self.path.name}") from error

    def _adopt(self, folder: Path) -> Coverage:
        found = best_leftover(folder, self.file)
        for data, journal in leftovers(folder, self.file.name):
            if found is not None and data == found[0]:
                # journal first: bytes without a journal are only fetched again, the reverse would trust holes
                journal.rename(self._journal_path)
                data.rename(self.path)
            else:
                files.remove(journal)
                files.remove(data)
        return found[1].coverage if found is not None else Coverage()

    @property
    def done_bytes(self) -> int:
        with self._guard:
            return self._coverage.total

    def missing(self) -> list[tuple[int, int]]:
        with self._guard:
            return self._coverage.missing(self.file.size)

    def write(self, window: Window, epoch: int) -> None:
        """Put the window's bytes on the volume and in the journal, unless the file was started again."""
        if epoch != self.epoch or not window.count:
            return
        try:
            self._data.write(window)
            with self._guard:
                if epoch == self.epoch:
                    self._journal.written(window.position, window.position + window.count)
                    self._coverage.add(window.position, window.position + window.count)
        except OSError as error:
            raise volume_error(error, f"cannot write {self.path.name}") from error

    def restart(self) -> None:
        """Forget every byte; what workers still deliver for the old epoch is ignored."""
        with self._guard:
            self.epoch += 1
            self._coverage = Coverage()
            try:
                fresh = Journal(self._journal_path, self.file, self._coverage, boot_id())
            except OSError as error:
                raise volume_error(error, f"cannot start {self._journal_path.name}") from error
            self._journal.close()
            self._journal = fresh

    @property
    def frontier(self) -> int:
        """End of the bytes that are here without a gap from byte 0 on."""
        with self._guard:
            return self._coverage.frontier

    def read(self, window: Window, position: int, end: int) -> memoryview:
        """Bytes of [position, end) read back, as many as fit the window."""
        try:
            return self._data.read(window, position, end)
        except OSError as error:
            raise volume_error(error, f"cannot read {self.path.name}") from error

    def checkpoint(self) -> None:
        """Put on disk what was written so far, and say so in the journal."""
        with self._guard:
            lines, epoch = self._journal.lines, self.epoch
        try:
            self._data.sync()
            with self._guard:
                if epoch == self.epoch:
                    self._journal.synced(lines)
        except OSError as error:
            raise volume_error(error, f"cannot sync {self.path.name}") from error

    def move_to(self, final: Path) -> os.stat_result:
        """Sync, rename to `final` on the same volume, drop the journal; returns the file's stat."""
        try:
            os.fsync(self._data.fd)
            self.path.rename(final)
            files.remove(self._journal_path)
            return os.fstat(self._data.fd)
        except OSError as error:
            raise volume_error(error, f"cannot rename {self.path.name}") from error

    def close(self) -> None:
        self._journal.close()
        self._data.close()
