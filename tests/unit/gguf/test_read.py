"""Reading tensor bytes: whole, by rows, by many threads, and from a file that shrank."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from glm5_vllm.gguf.errors import GGUFError
from glm5_vllm.gguf.file.read import TensorReader
from glm5_vllm.gguf.file.splits import open_model
from tests.support.raw_gguf import RawGGUF
from tests.support.tiny_gguf import TinyModel

EXPERTS = "blk.1.ffn_up_exps.weight"


def test_raw(tiny: TinyModel, raw: RawGGUF) -> None:
    """The bytes of a tensor come in its shape, the last dimension in bytes."""
    model = open_model(tiny.path)
    with TensorReader(model) as reader:
        got = reader.raw(model.tensors[EXPERTS])

    assert got.shape == (4, 256, 144)
    assert raw.tensor(EXPERTS).data == got.numpy().tobytes()


def test_rows_of_an_expert(tiny: TinyModel) -> None:
    """Rows count through the experts, so a rank reads just its share of one."""
    model = open_model(tiny.path)
    with TensorReader(model) as reader:
        whole = reader.raw(model.tensors[EXPERTS])
        part = reader.rows(model.tensors[EXPERTS], 3 * 256 + 64, 3 * 256 + 128)

    assert torch.equal(whole[3, 64:128], part)


def test_read_into_a_place(tiny: TinyModel) -> None:
    """Bytes land in the caller's memory, from any byte on."""
    model = open_model(tiny.path)
    out = torch.zeros(2, 50, dtype=torch.uint8)
    with TensorReader(model) as reader:
        reader.read_into(model.tensors[EXPERTS], 1000, out[1])
        whole = reader.raw(model.tensors[EXPERTS]).flatten()

    assert torch.equal(torch.stack([torch.zeros(50, dtype=torch.uint8), whole[1000:1050]]), out)


def test_many_threads(split: TinyModel) -> None:
    """One reader serves any number of threads."""
    model = open_model(split.path)
    tensors = list(model.tensors.values()) * 4
    with TensorReader(model) as reader, ThreadPoolExecutor(8) as pool:
        expected = [reader.raw(tensor) for tensor in tensors]

        assert all(map(torch.equal, expected, pool.map(reader.raw, tensors)))


def test_range_outside_the_tensor(tiny: TinyModel) -> None:
    """A range that leaves the tensor is refused, for the bytes beyond are another's."""
    model = open_model(tiny.path)
    with TensorReader(model) as reader, pytest.raises(GGUFError) as refused:
        reader.rows(model.tensors["output_norm.weight"], 0, 2)

    expected = "byte range of tensor output_norm.weight: 0 to 2048; expected within its 1024 bytes"
    assert expected == str(refused.value)


def test_file_that_shrank(raw: RawGGUF, tmp_path: Path) -> None:
    """A file that became shorter after its header was read ends in a sentence."""
    path = raw.write(tmp_path / "m.gguf")
    model = open_model(path)
    path.write_bytes(path.read_bytes()[:-100])
    with TensorReader(model) as reader, pytest.raises(GGUFError) as refused:
        reader.raw(model.tensors["output.weight"])

    assert str(refused.value) == "m.gguf became shorter while tensor output.weight was read"


def test_file_that_went(raw: RawGGUF, tmp_path: Path) -> None:
    """A file that went after its header was read ends in a sentence."""
    path = raw.write(tmp_path / "m.gguf")
    model = open_model(path)
    path.unlink()

    with pytest.raises(GGUFError, match=r"^cannot read .*m\.gguf: No such file or directory\. Check"):
        TensorReader(model)
