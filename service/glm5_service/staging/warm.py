"""Reads the published model into the page cache and reports how much of it is resident."""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from collections.abc import Iterable
from pathlib import Path

from glm5_service.staging.progress import Progress
from glm5_service.staging.reasons import Stopped
from glm5_service.staging.store.volume import volume_error
from glm5_service.staging.verify import READ_BYTES, in_parallel

# mincore looks at this much at a time: one byte a page, so the vector stays small
LOOK_BYTES = 1 << 30


def warm(files: Iterable[Path], limit_bytes: int, progress: Progress, stop: threading.Event) -> None:
    """Read the files in order until `limit_bytes` (0: all of them) have passed."""
    left = limit_bytes or None
    pieces: list[tuple[Path, int]] = []
    for path in files:
        size = path.stat().st_size
        take = size if left is None else min(size, left)
        left = None if left is None else left - take
        if take:
            pieces.append((path, take))

    def read(piece: tuple[Path, int]) -> None:
        path, count = piece
        buffer = memoryview(bytearray(READ_BYTES))
        try:
            with open(path, "rb", buffering=0) as file:
                while count > 0 and (got := file.readinto(buffer[: min(READ_BYTES, count)])):
                    if stop.is_set():
                        raise Stopped
                    count -= got
        except OSError as error:
            raise volume_error(error, f"cannot read {path}") from error

    in_parallel(read, pieces, progress)


def resident_bytes(path: Path) -> int:
    """Bytes of the file that are in the page cache, as mincore(2) says."""
    size, page = path.stat().st_size, mmap.PAGESIZE
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    resident = 0
    with open(path, "rb") as file:
        for offset in range(0, size, LOOK_BYTES):
            length = min(LOOK_BYTES, size - offset)
            address = libc.mmap(None, length, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), offset)
            if address in (None, ctypes.c_void_p(-1).value):
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))
            vector = (ctypes.c_ubyte * -(-length // page))()
            failed = libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(length), vector)
            libc.munmap(ctypes.c_void_p(address), ctypes.c_size_t(length))
            if failed:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))
            resident += sum(state & 1 for state in bytes(vector)) * page
    return min(resident, size)
