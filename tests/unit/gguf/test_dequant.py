"""Reference dequantisation against the gguf package's and llama.cpp's, bit for bit."""

from __future__ import annotations

import ctypes
import importlib.util
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from glm5_vllm.gguf.errors import GGUFError
from glm5_vllm.gguf.file.quant_types import BY_NAME, LOADABLE_NAMES
from glm5_vllm.gguf.values import dequant
from glm5_vllm.gguf.values.dequant import dequantize
from tests.support.random_blocks import SCALE_FIELDS

Bytes = NDArray[np.uint8]


def by_gguf_package(raw: Bytes, name: str) -> NDArray[np.float32]:
    """What the gguf package reads in whole blocks of one type."""
    kind = gguf.GGMLQuantizationType[name]
    if name in ("F32", "F16"):
        return raw.view({"F32": np.float32, "F16": np.float16}[name]).astype(np.float32)
    values: NDArray[np.float32] = gguf.quants.dequantize(raw.reshape(-1, BY_NAME[name].block_bytes), kind)
    return values


def by_llama_cpp(raw: Bytes, name: str) -> NDArray[np.float32]:
    """What llama.cpp reads in whole blocks of one type; it shares no table with the gguf package."""
    folder = importlib.util.find_spec("xllamacpp").submodule_search_locations[0]  # type: ignore[union-attr,index]
    library = ctypes.CDLL(str(next(Path(folder).glob("*.so"))))
    # q4_K, iq4_xs
    read = library[f"dequantize_row_{name.lower().removesuffix('_k')}{'_K' * name.endswith('_K')}"]
    read.argtypes, read.restype = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64), None
    values = np.empty(raw.size // BY_NAME[name].block_bytes * BY_NAME[name].block_elements, np.float32)
    read(raw.ctypes.data, values.ctypes.data, values.size)
    return values


def bits(values: object) -> NDArray[np.int32]:
    return np.ascontiguousarray(values, np.float32).reshape(-1).view(np.int32)


def with_scales(blocks: Bytes, name: str, scale: float) -> Bytes:
    """The blocks with their half-precision fields set to `scale`."""
    fields = SCALE_FIELDS.get(gguf.GGMLQuantizationType[name])
    if fields is not None:
        scales = np.full(len(blocks), scale)
        fields.put(blocks, scales, scales)
    return blocks


@pytest.mark.parametrize("name", LOADABLE_NAMES)
def test_random_blocks(name: str) -> None:
    """Any finite block of any type we load reads as the gguf package and llama.cpp read it."""
    quant = BY_NAME[name]
    raw = np.random.default_rng(0).integers(0, 256, (1001, quant.block_bytes), dtype=np.uint8)
    # every block with a scale beyond half precision's numbers is left out: it means nothing
    with np.errstate(all="ignore"):
        finite = np.isfinite(by_gguf_package(raw, name).reshape(1001, -1)).all(1)
    raw = raw[finite]

    got = dequantize(torch.from_numpy(raw), quant, (len(raw), quant.block_elements))

    assert finite.sum() > 900
    assert np.array_equal(bits(by_gguf_package(raw, name)), bits(got.numpy()))
    if not quant.is_float:
        assert np.array_equal(bits(by_llama_cpp(raw, name)), bits(got.numpy()))


@pytest.mark.parametrize("scale", [0.0, -0.0, 65504.0, -65504.0, 6e-8, 1.0], ids=str)
@pytest.mark.parametrize("fill", [0, 255, 0x80, 0x55], ids=hex)
@pytest.mark.parametrize("name", [name for name in LOADABLE_NAMES if not BY_NAME[name].is_float])
def test_edge_blocks(name: str, fill: int, scale: float) -> None:
    """Blocks of extreme quants under extreme scales read as the gguf package reads them."""
    quant = BY_NAME[name]
    raw = with_scales(np.full((3, quant.block_bytes), fill, np.uint8), name, scale)

    got = dequantize(torch.from_numpy(raw), quant, (3 * quant.block_elements,))

    assert np.array_equal(bits(by_gguf_package(raw, name)), bits(got.numpy()))


@pytest.mark.parametrize("shape", [(0, 256), (1, 256), (3, 5, 512), (7, 1, 2, 256)], ids=str)
def test_shapes(shape: tuple[int, ...]) -> None:
    """The result has the asked shape, whatever the shape of the bytes."""
    quant = BY_NAME["Q4_K"]
    raw = torch.zeros(int(np.prod(shape)) // 256 * 144, dtype=torch.uint8)

    assert torch.Size(shape) == dequantize(raw, quant, shape).shape


def test_part_of_a_row() -> None:
    """Bytes that lie with a stride, as a cut of wider rows does, are read as such."""
    quant = BY_NAME["Q6_K"]
    raw = torch.from_numpy(np.random.default_rng(1).integers(0, 60, (4, 3 * 210), dtype=np.uint8))
    whole = dequantize(raw, quant, (4, 768))

    assert torch.equal(whole[:, 256:512], dequantize(raw[:, 210:420], quant, (4, 256)))


def test_many_blocks_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Working in steps does not change the result."""
    quant = BY_NAME["Q5_K"]
    raw = torch.from_numpy(np.random.default_rng(2).integers(0, 60, (10, 176), dtype=np.uint8))
    at_once = dequantize(raw, quant, (2560,))
    monkeypatch.setattr(dequant, "_BLOCKS_AT_ONCE", 3)

    assert torch.equal(at_once, dequantize(raw, quant, (2560,)))


def test_unsupported_type() -> None:
    """A type without a reference is refused by name."""
    with pytest.raises(GGUFError, match=r"^type to dequantise: MXFP4; expected one of F32, F16, BF16, Q4_0"):
        dequantize(torch.zeros(17, dtype=torch.uint8), BY_NAME["MXFP4"], (32,))


def test_wrong_size() -> None:
    """Bytes that are not those of the shape are refused."""
    with pytest.raises(GGUFError, match=r"^bytes of a Q8_0 tensor of shape \[2, 32\]: 34; expected 68$"):
        dequantize(torch.zeros(34, dtype=torch.uint8), BY_NAME["Q8_0"], (2, 32))
