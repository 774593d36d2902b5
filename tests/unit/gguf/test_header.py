"""The header parser against the gguf package's reader, and what it costs at GLM-5's size."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGUFValueType as Type

from glm5_vllm.gguf.errors import GGUFError
from glm5_vllm.gguf.file import cursor
from glm5_vllm.gguf.file.header import ArrayValue, read_header
from tests.support.glm5_header import MERGES, TOKENS
from tests.support.raw_gguf import Array, RawGGUF
from tests.support.tiny_gguf import TinyModel


def test_tensors(tiny: TinyModel) -> None:
    """Names, shapes, types, offsets and sizes are those the gguf package reads."""
    expected = [
        (
            t.name,
            tuple(int(n) for n in reversed(t.shape)),
            t.tensor_type.name,
            t.data_offset,
            t.n_bytes,
            tiny.path,
        )
        for t in gguf.GGUFReader(tiny.path).tensors
    ]

    found = read_header(tiny.path).tensors
    assert expected == [(t.name, t.shape, t.quant.name, t.offset, t.nbytes, t.path) for t in found]


def test_metadata(tiny: TinyModel) -> None:
    """Every key has the value the gguf package reads, arrays included."""
    fields = gguf.GGUFReader(tiny.path).fields.items()
    expected = {key: field.contents() for key, field in fields if not key.startswith("GGUF.")}
    header = read_header(tiny.path)

    found = {
        key: header.read_array(key) if isinstance(value, ArrayValue) else value
        for key, value in header.metadata.items()
    }
    assert expected == found


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (Type.UINT8, [0, 255]), (Type.INT8, [-128, 127]), (Type.UINT16, [0, 65535]), (Type.INT16, [-32768, 32767]),
        (Type.UINT32, [0, 2**32 - 1]), (Type.INT32, [-(2**31), 2**31 - 1]), (Type.UINT64, [0, 2**64 - 1]),
        (Type.INT64, [-(2**63), 2**63 - 1]), (Type.FLOAT32, [0.5, -2.0]), (Type.FLOAT64, [0.1, 1e300]),
        (Type.BOOL, [True, False]), (Type.STRING, ["", "grüße 你好 😀"]),
    ],
    ids=lambda value: value.name if isinstance(value, Type) else "",
)  # fmt: skip
def test_value_types(kind: Type, values: list[object], tmp_path: Path) -> None:
    """Every value type is read, alone and in an array."""
    raw = RawGGUF(metadata={"alone": (kind, values[1]), "array": (Type.ARRAY, Array(kind, values))})
    header = read_header(raw.write(tmp_path / "m.gguf"))

    assert (values[1], values) == (header.metadata["alone"], header.read_array("array"))


def test_version_2(raw: RawGGUF, tmp_path: Path) -> None:
    """Version 2 files are read; they differ in nothing we use."""
    raw.version = 2

    assert len(raw.tensors) == len(read_header(raw.write(tmp_path / "m.gguf")).tensors)


def test_alignment(raw: RawGGUF, tmp_path: Path) -> None:
    """Tensors lie where another alignment puts them."""
    raw.alignment = 4096
    raw.metadata["general.alignment"] = (Type.UINT32, 4096)
    path = raw.write(tmp_path / "m.gguf")

    content = path.read_bytes()
    for tensor, written in zip(read_header(path).tensors, raw.tensors, strict=True):
        assert written.data == content[tensor.offset : tensor.offset + tensor.nbytes]


def broken(change: Callable[[bytearray], None], raw: RawGGUF, path: Path) -> str:
    """The sentence that a header is refused with after its bytes were changed."""
    content = bytearray(raw.bytes())
    change(content)
    path.write_bytes(content)
    with pytest.raises(GGUFError) as refused:
        read_header(path)
    return str(refused.value)


def put_number(after: bytes, number: int) -> Callable[[bytearray], None]:
    """Overwrite the 8 bytes that follow `after`."""

    def change(content: bytearray) -> None:
        start = content.index(after) + len(after)
        content[start : start + 8] = number.to_bytes(8, "little")

    return change


@pytest.mark.parametrize(
    ("kind", "value", "after", "number", "expected"),
    [
        (
            Type.STRING,
            "abc",
            b"key\x08\0\0\0",
            1 << 62,
            "the header is truncated: metadata key key ends at byte",
        ),
        (
            Type.ARRAY,
            Array(Type.STRING, ["a", "b"]),
            b"key\x09\0\0\0\x08\0\0\0",
            1 << 61,
            "the header is truncated: metadata key key ends at byte",
        ),
        (
            Type.ARRAY,
            Array(Type.INT64, [1, 2]),
            b"key\x09\0\0\0\x0b\0\0\0",
            1 << 63,
            "the header is truncated: metadata key key ends at byte",
        ),
        (
            Type.UINT64,
            1,
            b"key",
            9 | (9 << 32),
            "value type of metadata key key: 9; expected a GGUF value type",
        ),
        (Type.UINT64, 1, b"key", 77, "value type of metadata key key: 77; expected a GGUF value type"),
    ],
    ids=["string-length", "array-of-strings", "array-of-numbers", "array-of-arrays", "value-type"],
)
def test_absurd_numbers(
    kind: Type, value: object, after: bytes, number: int, expected: str, tmp_path: Path
) -> None:
    """A count or length that the file cannot hold is refused before anything of that size is made."""
    raw = RawGGUF(metadata={"key": (kind, value)})

    sentence = broken(put_number(after, number), raw, tmp_path / "m.gguf")
    assert sentence.startswith(f"m.gguf: {expected}")


def test_doubled_key(tmp_path: Path) -> None:
    """A key that occurs twice is refused."""
    raw = RawGGUF(metadata={"key.a": (Type.BOOL, True), "key.b": (Type.BOOL, True)})

    def change(content: bytearray) -> None:
        content[content.index(b"key.b") + 4] = ord("a")

    expected = "m.gguf: metadata key key.a: twice; expected each key once. Fetch the file again"
    assert expected == broken(change, raw, tmp_path / "m.gguf")


def test_header_has_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A header longer than any model's is refused, however long the file is."""
    monkeypatch.setattr(cursor, "MAX_HEADER_BYTES", 1 << 20)
    raw = RawGGUF(metadata={"key": (Type.STRING, "x" * (2 << 20))})

    expected = (
        "m.gguf: header length: metadata key key ends at byte 2097199; expected at most 1048576 bytes. "
    )
    assert f"{expected}Fetch the file again" == broken(lambda content: None, raw, tmp_path / "m.gguf")


def test_file_changed_since(tiny: TinyModel, raw: RawGGUF, tmp_path: Path) -> None:
    """An array is not read from a file that has become shorter."""
    path = raw.write(tmp_path / "m.gguf")
    header = read_header(path)
    path.write_bytes(path.read_bytes()[:4000])

    with pytest.raises(GGUFError, match="changed while it was read"):
        header.read_array("tokenizer.ggml.tokens")


def test_glm5_vocabulary(glm5: list[Path], record_property: Callable[[str, object], None]) -> None:
    """A header with GLM-5's vocabulary is read whole; what it took is recorded, not judged."""
    started = time.perf_counter()
    header = read_header(glm5[0])
    record_property("header_seconds", round(time.perf_counter() - started, 3))

    tokens, merges = (header.metadata[f"tokenizer.ggml.{name}"] for name in ("tokens", "merges"))
    assert isinstance(tokens, ArrayValue)
    assert isinstance(merges, ArrayValue)
    assert (tokens.count, merges.count) == (TOKENS, MERGES)
    assert header.read_array("tokenizer.ggml.tokens")[-1] == "<|endoftext|>"
    assert np.prod(header.tensors[0].shape) > 900_000_000
