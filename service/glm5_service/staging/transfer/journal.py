"""The journal of a partial file: which bytes were written, so that the next run continues at the byte.

One line each, appended after the bytes are written:
    {"name": ..., "size": ..., "version": ..., "etag": ..., "boot": ...}    the file, and the boot that wrote it
    w START END                                                            these bytes were written
    s COUNT                                                                the first COUNT `w` lines are on disk

A journal starts with what is on disk already, and is on disk itself before it replaces the one before.

After a kill the page cache still has all bytes, so every `w` counts. After a crash of the machine, or on another
one, only those under the last `s` do. A line cut short by the kill does not count.
"""

from __future__ import annotations

import json
import os
import re
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from pathlib import Path

from glm5_service.foreign import parse_json, whole
from glm5_service.staging.records import RemoteFile, opaque
from glm5_service.staging.store.files import open_file
from glm5_service.staging.store.volume import read_if_there, sync_folder

_WRITTEN = re.compile(r"w ([0-9]{1,19}) ([0-9]{1,19})")
_SYNCED = re.compile(r"s ([0-9]{1,19})")


class Coverage:
    """A set of half-open byte ranges. Not thread-safe; its owner locks."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def add(self, start: int, end: int) -> None:
        """Add [start, end), merged with every range it touches."""
        if start >= end:
            return
        first = bisect_left(self._ends, start)
        last = bisect_right(self._starts, end)
        if first < last:
            start = min(start, self._starts[first])
            end = max(end, self._ends[last - 1])
        self._starts[first:last] = [start]
        self._ends[first:last] = [end]

    @property
    def total(self) -> int:
        """Bytes covered."""
        return sum(self._ends) - sum(self._starts)

    @property
    def frontier(self) -> int:
        """End of the range that starts at byte 0; 0 if byte 0 is missing."""
        return self._ends[0] if self._starts and self._starts[0] == 0 else 0

    def ranges(self) -> list[tuple[int, int]]:
        return list(zip(self._starts, self._ends, strict=True))

    def missing(self, size: int) -> list[tuple[int, int]]:
        """The gaps of [0, size)."""
        edges = [0, *(edge for pair in self.ranges() for edge in pair), size]
        return [(start, end) for start, end in zip(edges[::2], edges[1::2], strict=True) if start < end]


@dataclass(frozen=True)
class Entry:
    """A journal as found: the file it is about and the bytes that can be relied on."""

    file: dict[str, object]
    coverage: Coverage

    def is_about(self, file: RemoteFile) -> bool:
        return self.file == transfer_identity(file)


def transfer_identity(file: RemoteFile) -> dict[str, object]:
    """What must be equal for a transfer to continue; a new ETag starts again even under an old digest."""
    return {**file.identity(), "etag": opaque(file.etag)}


def read_journal(path: Path, boot: str) -> Entry | None:
    """What the journal at `path` says; None if there is none, or it is
    damaged: no header, or a range that is not within the file. Raises StagingError if it cannot be
    read."""
    data = read_if_there(path)
    try:
        lines = (data or b"").decode("utf-8", errors="replace").split("\n")[:-1]
        header = parse_json(lines[0])
        written_in = header.pop("boot")
        size = whole(header["size"])
    except (ValueError, LookupError, AttributeError, TypeError):
        return None
    if size is None:
        return None
    written, durable = _ranges(lines[1:])
    if any(not start < end <= size for start, end in written):
        return None
    coverage = Coverage()
    for start, end in written if written_in == boot else written[:durable]:
        coverage.add(start, end)
    return Entry(header, coverage)


def _ranges(lines: list[str]) -> tuple[list[tuple[int, int]], int]:
    """The ranges in the order they were written, and how many of them are on disk."""
    written: list[tuple[int, int]] = []
    durable = 0
    for line in lines:
        if match := _WRITTEN.fullmatch(line):
            written.append((int(match[1]), int(match[2])))
        elif match := _SYNCED.fullmatch(line):
            durable = int(match[1])
    return written, durable


class Journal:
    """Appends to the journal of one transfer. Not thread-safe; the partial file locks."""

    def __init__(self, path: Path, file: RemoteFile, coverage: Coverage, boot: str) -> None:
        """Start the journal anew with what `coverage` has, which must be on disk (replaces a longer one in one step)."""
        fresh = path.with_name(f"{path.name}.new")
        self._fd = open_file(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
        self._lines = 0
        try:
            self._append(json.dumps({**transfer_identity(file), "boot": boot}))
            for start, end in coverage.ranges():
                self.written(start, end)
            self.synced(self._lines)
            os.replace(fresh, path)
            sync_folder(path.parent)
        except OSError:
            self.close()
            raise

    def written(self, start: int, end: int) -> None:
        self._append(f"w {start} {end}")
        self._lines += 1

    @property
    def lines(self) -> int:
        """How many `w` lines there are: what `synced` is told after the data was synced."""
        return self._lines

    def synced(self, lines: int) -> None:
        self._append(f"s {lines}")
        os.fsync(self._fd)

    def close(self) -> None:
        os.close(self._fd)

    def _append(self, line: str) -> None:
        data = f"{line}\n".encode()
        if os.write(self._fd, data) != len(data):
            raise OSError(28, "No space left on device")
