"""A GGUF file as editable data: read one, change anything, write it back, sensible or not.

Writing shares no code with the reader under test and checks nothing, so it can write every kind of broken file.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
from gguf import GGUFValueType as Type

FORMATS = {
    Type.UINT8: "B", Type.INT8: "b", Type.UINT16: "H", Type.INT16: "h", Type.UINT32: "I", Type.INT32: "i",
    Type.FLOAT32: "f", Type.BOOL: "?", Type.UINT64: "Q", Type.INT64: "q", Type.FLOAT64: "d",
}  # fmt: skip


@dataclass
class Array:
    """A metadata array."""

    element: Type
    items: list[Any]


@dataclass
class RawTensor:
    """A tensor; `shape` in numpy order. `offset` from the data's start, set where it shall not follow the one before."""

    name: str
    shape: tuple[int, ...]
    type_id: int
    data: bytes
    offset: int | None = None


@dataclass
class RawGGUF:
    """Metadata as (type, value) by key, tensors in the order of the index, and the numbers of the preamble."""

    metadata: dict[str, tuple[Type, Any]] = field(default_factory=dict)
    tensors: list[RawTensor] = field(default_factory=list)
    magic: bytes = b"GGUF"
    version: int = 3
    tensor_count: int | None = None
    key_count: int | None = None
    alignment: int = 32

    @classmethod
    def read(cls, path: Path) -> RawGGUF:
        reader = gguf.GGUFReader(path)
        raw = cls()
        for key, value in reader.fields.items():
            if key.startswith("GGUF."):
                continue
            contents: Any = value.contents()
            if value.types[0] == Type.ARRAY:
                contents = Array(value.types[-1], list(contents))
            raw.metadata[key] = (value.types[0], contents)
        for tensor in reader.tensors:
            shape = tuple(int(size) for size in reversed(tensor.shape))
            raw.tensors.append(RawTensor(tensor.name, shape, int(tensor.tensor_type), tensor.data.tobytes()))
        return raw

    def tensor(self, name: str) -> RawTensor:
        return next(tensor for tensor in self.tensors if tensor.name == name)

    def drop(self, name: str) -> None:
        self.tensors.remove(self.tensor(name))

    def set(self, key: str, value: Any) -> None:
        """Change the value of a key that is there."""
        self.metadata[key] = (self.metadata[key][0], value)

    def header(self) -> bytes:
        """Everything before the data, without the padding at its end."""
        keys = len(self.metadata) if self.key_count is None else self.key_count
        tensors = len(self.tensors) if self.tensor_count is None else self.tensor_count
        parts = [self.magic, struct.pack("<IQQ", self.version, tensors, keys)]
        for key, (kind, value) in self.metadata.items():
            parts += [_string(key), struct.pack("<I", kind), _value(kind, value)]
        offset = 0
        for tensor in self.tensors:
            at = offset if tensor.offset is None else tensor.offset
            sizes = struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *reversed(tensor.shape))
            parts += [_string(tensor.name), sizes, struct.pack("<IQ", tensor.type_id, at)]
            offset += self._padded(len(tensor.data))
        return b"".join(parts)

    def bytes(self) -> bytes:
        header = self.header()
        data = b"".join(tensor.data.ljust(self._padded(len(tensor.data)), b"\0") for tensor in self.tensors)
        return header.ljust(self._padded(len(header)), b"\0") + data

    def write(self, path: Path) -> Path:
        path.write_bytes(self.bytes())
        return path

    def _padded(self, size: int) -> int:
        return -(-size // self.alignment) * self.alignment


def _string(text: str | bytes) -> bytes:
    data = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(kind: Type, value: Any) -> bytes:
    if kind == Type.STRING:
        return _string(value)
    if kind != Type.ARRAY:
        return struct.pack(f"<{FORMATS[kind]}", value)
    head = struct.pack("<IQ", value.element, len(value.items))
    if value.element == Type.STRING:
        return head + b"".join(_string(item) for item in value.items)
    return head + struct.pack(f"<{len(value.items)}{FORMATS[value.element]}", *value.items)
