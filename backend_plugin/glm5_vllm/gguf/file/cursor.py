"""A bounds-checked position in the header of a GGUF file, over bytes that are read as they are needed.

Knows how scalars and strings are laid out, not what they mean.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO

from glm5_vllm.gguf.errors import FETCH_AGAIN, GGUFError

# a GLM-5 header (155k tokens, 320k merges, 1,800 tensors) is about 12 MB: the bound leaves room and keeps a
# corrupt count from costing seconds
MAX_HEADER_BYTES = 32 << 20
_READ_BYTES = 1 << 20

SCALARS = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
U32, U64 = SCALARS[4], SCALARS[10]


class Cursor:
    """A position in the header, over bytes that are read from the file as they are needed."""

    def __init__(self, file: BinaryIO, path: Path, size: int) -> None:
        self.path = path
        self.size = size
        self.position = 0
        self._file = file
        self._data = bytearray()

    def broken(self, what: str, value: object, expected: str, remedy: str = FETCH_AGAIN) -> GGUFError:
        """The error for this file, to be raised."""
        return GGUFError(f"{self.path.name}: {what}", value, expected=expected, remedy=remedy)

    def peek(self, count: int) -> bytes:
        """Up to `count` bytes from the start of the file, fewer where it is shorter."""
        self._fill(min(count, self.size), "the magic bytes")
        return bytes(self._data[:count])

    def u32(self, what: str) -> int:
        return int(self.scalar(U32, what))

    def u64(self, what: str) -> int:
        return int(self.scalar(U64, what))

    def scalar(self, kind: struct.Struct, what: str) -> int | float | bool:
        start = self.position
        self.skip(kind.size, what)
        value: int | float | bool = kind.unpack_from(self._data, start)[0]
        return value

    def count(self, what: str, limit: int) -> int:
        number = self.u64(f"the number of {what}")
        if number > limit:
            raise self.broken(f"number of {what}", number, f"at most {limit}")
        return number

    def string(self, what: str) -> str:
        length = self.u64(what)
        start = self.position
        self.skip(length, what)
        try:
            return self._data[start : self.position].decode()
        except UnicodeDecodeError as error:
            raise self.broken(what, str(error), "UTF-8 text") from error

    def skip(self, count: int, what: str) -> None:
        self._fill(self.position + count, what)
        self.position += count

    def skip_strings(self, count: int, what: str) -> None:
        # each string has at least its length, so the count alone can show that the array is absurd
        self._check(self.position + 8 * count, what)
        data, unpack, position = self._data, U64.unpack_from, self.position
        for _ in range(count):
            if position + 8 > len(data):
                self._fill(position + 8, what)
            position += 8 + unpack(data, position)[0]
        self._fill(position, what)
        self.position = position

    def _check(self, end: int, what: str) -> None:
        if end > self.size:
            raise self.broken(
                "the header is truncated",
                f"{what} ends at byte {end}",
                f"it within the file's {self.size} bytes",
            )
        if end > MAX_HEADER_BYTES:
            raise self.broken(
                "header length", f"{what} ends at byte {end}", f"at most {MAX_HEADER_BYTES} bytes"
            )

    def _fill(self, end: int, what: str) -> None:
        if end <= len(self._data):
            return
        self._check(end, what)
        while len(self._data) < end:
            chunk = self._file.read(max(_READ_BYTES, end - len(self._data)))
            if not chunk:
                raise self.broken(
                    "the file became shorter while it was read", len(self._data), f"{self.size} bytes"
                )
            self._data += chunk
