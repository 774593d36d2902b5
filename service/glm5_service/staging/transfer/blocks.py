"""Writes and reads files past the page cache where the filesystem allows it.

Copying 402 GB through the page cache costs more CPU than receiving them. Under a memory limit every page must also be
reclaimed at once. O_DIRECT takes whole blocks, so ragged ends go through the page cache.
"""

from __future__ import annotations

import errno
import mmap
import os
from contextlib import suppress
from pathlib import Path

from glm5_service.staging.store.files import open_file

BLOCK = 4096


class Window:
    """Room for bytes on their way to a file, laid out so that file offset and address agree modulo a block."""

    def __init__(self, size: int) -> None:
        # starts at a page; huge ones, where `size` allows it, are faster to write from
        pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with suppress(OSError):
            pages.madvise(mmap.MADV_HUGEPAGE)
        self.view = memoryview(pages)
        self.position = self.begin = self.end = 0

    def restart(self, position: int) -> None:
        """Empty; the next byte put in is byte `position` of the file."""
        self.position, self.begin = position, position % BLOCK
        self.end = self.begin

    @property
    def room(self) -> memoryview:
        """Where the next bytes go; empty when the window is full."""
        # one block is spare, as the first byte may lie anywhere in a block: a full window ends at a block
        return self.view[self.end : len(self.view) - BLOCK]

    @property
    def count(self) -> int:
        return self.end - self.begin

    def filled(self, count: int) -> None:
        """`count` bytes were put at the start of `room`."""
        self.end += count

    def put(self, data: bytes) -> None:
        """Put `data` behind what is there."""
        self.room[: len(data)] = data
        self.filled(len(data))

    def cut(self) -> bytes:
        """Take out and return the bytes behind the last whole block."""
        rest = min(self.end % BLOCK, self.count)
        self.end -= rest
        return bytes(self.view[self.end : self.end + rest])


class BlockFile:
    """A file open for writing at any offset."""

    def __init__(self, path: Path) -> None:
        self.fd = open_file(path, os.O_RDWR | os.O_CREAT)
        try:
            self._direct: int | None = open_file(path, os.O_RDWR | os.O_DIRECT)
        except OSError:
            self._direct = None

    def write(self, window: Window) -> None:
        """Put the window's bytes in place."""
        head = min(-window.begin % BLOCK, window.count)
        body = (window.count - head) // BLOCK * BLOCK
        at, offset = window.begin, window.position
        for length, is_aligned in ((head, False), (body, True), (window.count - head - body, False)):
            self._write(window.view[at : at + length], offset, is_aligned)
            at, offset = at + length, offset + length

    def _write(self, data: memoryview, offset: int, is_aligned: bool) -> None:
        while data:
            if is_aligned and self._direct is not None:
                try:
                    count = os.pwrite(self._direct, data, offset)
                except OSError as error:
                    if error.errno != errno.EINVAL:
                        raise
                    self._direct = None
                    continue
                # a write cut short may leave a rest that is not aligned
                is_aligned = count % BLOCK == 0
            else:
                count = os.pwrite(self.fd, data, offset)
            data, offset = data[count:], offset + count

    def read(self, window: Window, position: int, end: int) -> memoryview:
        """Bytes from `position` on, up to `end` and what fits; the window is used as the room for them."""
        start = position - position % BLOCK
        length = min(len(window.view), end - start)
        fd = self.fd if self._direct is None else self._direct
        # whole blocks are asked for; the answer ends at the end of the file
        count = os.preadv(fd, [window.view[: -(-length // BLOCK) * BLOCK]], start)
        return window.view[position - start : min(count, end - start)]

    def sync(self) -> None:
        os.fdatasync(self.fd)

    def close(self) -> None:
        os.close(self.fd)
        if self._direct is not None:
            os.close(self._direct)
