"""Damaged headers end in GGUFError or in a plan, whatever the damage, and cost little memory."""

from __future__ import annotations

import contextlib
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from glm5_vllm.gguf.errors import GGUFError
from glm5_vllm.gguf.huggingface.folder import hf_folder_for
from glm5_vllm.gguf.inspect import inspect, report, text
from tests.support.raw_gguf import RawGGUF
from tests.support.tiny_gguf import write_tiny
from tests.support.tiny_spec import TinySpec

# the bound on a header's length, 32 MiB, bounds what can be made of it
PEAK_BYTES = 256 << 20


@dataclass(frozen=True, repr=False)
class Sound:
    """The header of a sound file, and the file's length."""

    header: bytes
    size: int


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Sound:
    """A small model's header."""
    spec = TinySpec(layers=2, heads=1, experts=2, index_heads=1, write_indexer_types=True)
    raw = RawGGUF.read(write_tiny(tmp_path_factory.mktemp("sound"), spec).path)
    return Sound(raw.header(), len(raw.bytes()))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where damaged files are written, one after the other; what is built from them lies there too."""
    folder = tmp_path_factory.mktemp("damaged")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GLM5_CACHE_DIR", str(folder))
        yield folder


def survives(content: bytes, size: int, place: Path) -> None:
    """Read, plan, report and build from a file of `size` bytes that starts with `content`."""
    path = place / "m.gguf"
    with path.open("wb") as file:
        file.write(content)
        file.truncate(size)
    tracemalloc.start()
    try:
        with contextlib.suppress(GGUFError):
            found = inspect(path)
            report(found)
            text(found)
            hf_folder_for(path)
        assert tracemalloc.get_traced_memory()[1] < PEAK_BYTES
    finally:
        tracemalloc.stop()


FUZZ = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@FUZZ
@given(data=st.data())
def test_flipped_bytes(data: st.DataObject, sound: Sound, place: Path) -> None:
    """Any bytes of the header may be anything."""
    header = bytearray(sound.header)
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(header) - 1))
        header[position] = data.draw(st.integers(0, 255))

    survives(bytes(header), sound.size, place)


@FUZZ
@given(data=st.data())
def test_absurd_numbers(data: st.DataObject, sound: Sound, place: Path) -> None:
    """Any eight bytes of the header may be a huge or odd number, in a file that is huge as well."""
    header = bytearray(sound.header)
    position = data.draw(st.integers(4, len(header) - 8))
    number = data.draw(
        st.sampled_from([0, 1, 2**31, 2**32 - 1, 2**40, 2**63, 2**64 - 1]) | st.integers(0, 2**64 - 1)
    )
    header[position : position + 8] = number.to_bytes(8, "little")

    survives(bytes(header), data.draw(st.sampled_from([sound.size, 1 << 40])), place)


@FUZZ
@given(data=st.data())
def test_cut_anywhere(data: st.DataObject, sound: Sound, place: Path) -> None:
    """The file may end anywhere."""
    end = data.draw(st.integers(0, len(sound.header) + 64))

    survives(sound.header[:end], end, place)


@FUZZ
@given(content=st.binary(max_size=300))
def test_noise(content: bytes, place: Path) -> None:
    """Anything may follow the magic bytes."""
    survives(b"GGUF\x03\0\0\0" + content, 8 + len(content), place)
