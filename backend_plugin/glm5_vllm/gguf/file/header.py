"""Read the header of one GGUF file, metadata and tensor index, with the standard library alone.

Nothing is believed before it is checked against the size of the file, so a broken file ends in one GGUFError
and never in a large allocation. Arrays are stepped over and read on demand. Next: splits.py.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from glm5_vllm.gguf.errors import CONVERT, FETCH_AGAIN, GGUFError, unreadable
from glm5_vllm.gguf.file.cursor import SCALARS, U64, Cursor
from glm5_vllm.gguf.file.quant_types import BY_ID, CHOOSE_ANOTHER, QuantType

MAGIC = b"GGUF"
VERSIONS = (2, 3)
LFS_PREFIX = b"version https://git-lfs"

# far above GLM-5's 60 keys and 1,800 tensors
MAX_KEYS = 4096
MAX_TENSORS = 1 << 16

_STRING, _ARRAY = 8, 9


@dataclass(frozen=True, slots=True)
class ArrayValue:
    """A metadata array that was stepped over: where it lies, for `Header.read_array`."""

    element_type: int
    count: int
    offset: int
    nbytes: int

    @property
    def is_text(self) -> bool:
        """Whether the elements are strings."""
        return self.element_type == _STRING


MetadataValue = int | float | bool | str | ArrayValue


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of the index.

    `shape` is in numpy order (ggml's `ne` reversed); `offset` counts from the start of the file. Bytes lie in a row,
    but for a part that `rows_of_each` takes out: its matrices lie `matrix_stride` bytes apart.
    """

    name: str
    shape: tuple[int, ...]
    quant: QuantType
    offset: int
    nbytes: int
    path: Path
    matrix_stride: int | None = None

    @property
    def row_bytes(self) -> int:
        """Bytes of one row, that is of `shape[-1]` elements."""
        return self.shape[-1] // self.quant.block_elements * self.quant.block_bytes

    def rows_of_each(self, start: int, stop: int) -> TensorInfo:
        """Rows `start` to `stop` of every matrix of a [matrices, rows, columns] tensor, under the same name."""
        matrices, rows, columns = self.shape
        return replace(
            self,
            shape=(matrices, stop - start, columns),
            offset=self.offset + start * self.row_bytes,
            nbytes=matrices * (stop - start) * self.row_bytes,
            matrix_stride=rows * self.row_bytes,
        )


@dataclass(frozen=True, slots=True)
class Header:
    """The header of one file; tensors in the order of the index."""

    path: Path
    version: int
    metadata: Mapping[str, MetadataValue]
    tensors: tuple[TensorInfo, ...]
    alignment: int
    data_start: int
    file_size: int

    def read_array(self, key: str) -> list[int] | list[float] | list[str]:
        """Read the array `key` from the file.

        Raises:
            GGUFError: the key is missing, is no array, or its bytes are no longer there.
        """
        value = self.metadata.get(key)
        if not isinstance(value, ArrayValue):
            found = "missing" if value is None else repr(value)
            raise GGUFError(f"{self.path.name} metadata key {key}", found, expected="an array")
        try:
            with self.path.open("rb") as file:
                file.seek(value.offset)
                data = file.read(value.nbytes)
        except OSError as error:
            raise unreadable(self.path, error) from error
        if len(data) != value.nbytes:
            raise GGUFError(f"{self.path.name} changed while it was read at key", key, remedy=FETCH_AGAIN)
        if value.element_type != _STRING:
            code = SCALARS[value.element_type].format[1:]
            return list(struct.unpack(f"<{value.count}{code}", data))
        return _split_strings(data, value.count, f"{self.path.name} metadata key {key}")


def read_header(path: str | os.PathLike[str]) -> Header:
    """Parse and check the header of the GGUF file at `path`.

    Raises:
        GGUFError: the file is missing, unreadable or no little-endian GGUF of version 2 or 3, or it is
            broken: truncated, absurd counts, unknown types, tensors that overlap or lie outside the file.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            cursor = Cursor(file, path, os.fstat(file.fileno()).st_size)
            return _parse(cursor)
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from error


def read_bytes(tensor: TensorInfo, count: int) -> bytes:
    """The first `count` bytes of a tensor.

    Raises:
        GGUFError: they are no longer there.
    """
    try:
        with tensor.path.open("rb") as file:
            file.seek(tensor.offset)
            data = file.read(count)
    except OSError as error:
        raise unreadable(tensor.path, error) from error
    if len(data) != count:
        what = f"{tensor.path.name} changed while it was read at tensor"
        raise GGUFError(what, tensor.name, remedy=FETCH_AGAIN)
    return data


def _parse(cursor: Cursor) -> Header:
    version = _read_preamble(cursor)
    tensor_count = cursor.count("tensors", MAX_TENSORS)
    key_count = cursor.count("metadata keys", MAX_KEYS)
    metadata: dict[str, MetadataValue] = {}
    for _ in range(key_count):
        key = cursor.string("a metadata key")
        if key in metadata:
            raise cursor.broken(f"metadata key {key}", "twice", "each key once")
        metadata[key] = _read_value(cursor, key)
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or not 0 < alignment <= 1 << 20 or alignment & (alignment - 1):
        raise cursor.broken("general.alignment", alignment, "a power of two")
    index = [_read_tensor(cursor) for _ in range(tensor_count)]
    data_start = -(-cursor.position // alignment) * alignment
    tensors = tuple(_place(cursor, entry, data_start, alignment) for entry in index)
    _check_overlaps(cursor, tensors)
    return Header(cursor.path, version, metadata, tensors, alignment, data_start, cursor.size)


def _read_preamble(cursor: Cursor) -> int:
    if cursor.size == 0:
        raise cursor.broken("file size", "0 bytes", "a GGUF file")
    start = cursor.peek(len(LFS_PREFIX))
    if start == LFS_PREFIX:
        raise GGUFError(
            f"{cursor.path.name} is a Git LFS pointer",
            f"{cursor.size} bytes of text",
            expected="the model file itself",
            remedy="Fetch it with 'git lfs pull' or from the source's download address",
        )
    if start[:4] != MAGIC:
        raise cursor.broken("magic bytes", repr(start[:4]), repr(MAGIC))
    cursor.position = 4
    version = cursor.u32("the version")
    if version not in VERSIONS:
        if int.from_bytes(version.to_bytes(4, "big"), "little") in VERSIONS:
            raise cursor.broken("byte order", "big endian", "little endian", CONVERT)
        raise cursor.broken("GGUF version", version, " or ".join(map(str, VERSIONS)), CONVERT)
    return version


def _read_value(cursor: Cursor, key: str) -> MetadataValue:
    what = f"metadata key {key}"
    type_id = cursor.u32(what)
    if type_id == _STRING:
        return cursor.string(what)
    if type_id != _ARRAY:
        return cursor.scalar(_scalar_of(cursor, type_id, what), what)
    element_type = cursor.u32(what)
    count = cursor.u64(what)
    start = cursor.position
    if element_type == _STRING:
        cursor.skip_strings(count, what)
    else:
        cursor.skip(count * _scalar_of(cursor, element_type, what).size, what)
    return ArrayValue(element_type, count, start, cursor.position - start)


def _scalar_of(cursor: Cursor, type_id: int, what: str) -> struct.Struct:
    try:
        return SCALARS[type_id]
    except KeyError:
        raise cursor.broken(
            f"value type of {what}", type_id, "a GGUF value type (arrays of arrays are none)"
        ) from None


def _read_tensor(cursor: Cursor) -> tuple[str, tuple[int, ...], QuantType, int]:
    name = cursor.string("a tensor name")
    what = f"tensor {name}"
    dimensions = cursor.u32(what)
    if not 1 <= dimensions <= 4:
        raise cursor.broken(f"dimensions of {what}", dimensions, "1 to 4")
    shape = tuple(cursor.u64(what) for _ in range(dimensions))[::-1]
    type_id = cursor.u32(what)
    quant = BY_ID.get(type_id)
    if quant is None:
        raise cursor.broken(
            f"type id of {what}",
            type_id,
            "a ggml type",
            f"{CHOOSE_ANOTHER}, or update this software if the type is new",
        )
    if min(shape) < 1:
        raise cursor.broken(f"shape of {what}", list(shape), "positive sizes")
    if shape[-1] % quant.block_elements:
        raise cursor.broken(
            f"row length of {what}", shape[-1], f"a multiple of {quant.block_elements} for {quant.name}"
        )
    return name, shape, quant, cursor.u64(what)


def _place(
    cursor: Cursor, entry: tuple[str, tuple[int, ...], QuantType, int], data_start: int, alignment: int
) -> TensorInfo:
    name, shape, quant, relative = entry
    if relative % alignment:
        raise cursor.broken(f"offset of tensor {name}", relative, f"a multiple of the alignment {alignment}")
    elements = 1
    for size in shape:
        elements *= size
    nbytes = elements // quant.block_elements * quant.block_bytes
    end = data_start + relative + nbytes
    if end > cursor.size:
        raise cursor.broken(
            "the file is truncated",
            f"tensor {name} ends at byte {end}",
            f"it within the file's {cursor.size} bytes",
        )
    return TensorInfo(name, shape, quant, data_start + relative, nbytes, cursor.path)


def _check_overlaps(cursor: Cursor, tensors: tuple[TensorInfo, ...]) -> None:
    seen: set[str] = set()
    before: TensorInfo | None = None
    for tensor in sorted(tensors, key=lambda tensor: tensor.offset):
        if tensor.name in seen:
            raise cursor.broken(f"tensor {tensor.name}", "twice in the index", "each tensor once")
        seen.add(tensor.name)
        if before is not None and before.offset + before.nbytes > tensor.offset:
            raise cursor.broken(f"tensor {tensor.name}", f"overlaps {before.name}", "disjoint tensors")
        before = tensor


def _split_strings(data: bytes, count: int, what: str) -> list[str]:
    strings: list[str] = []
    position = 0
    try:
        for _ in range(count):
            start = position + 8
            position = start + U64.unpack_from(data, position)[0]
            strings.append(data[start:position].decode())
    except (struct.error, UnicodeDecodeError) as error:
        raise GGUFError(what, str(error), expected="UTF-8 strings", remedy=FETCH_AGAIN) from error
    return strings
