"""A model cut into raw pieces is refused with the command that joins them, and that command is run."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from glm5_vllm.gguf.errors import GGUFError
from glm5_vllm.gguf.file.splits import open_model
from tests.support.tiny_gguf import TinyModel


def cut(whole: bytes, names: list[str], folder: Path) -> list[Path]:
    size = -(-len(whole) // len(names))
    paths = [folder / name for name in names]
    for i, path in enumerate(paths):
        path.write_bytes(whole[i * size : (i + 1) * size])
    return paths


@pytest.mark.parametrize(
    "names",
    [
        [f"my model.gguf.part{i}of2" for i in (1, 2)],
        [f"m.gguf.part{i}of12" for i in range(1, 13)],
        [f"m.gguf.part-{i:05d}-of-00012" for i in range(1, 13)],
        [f"m.gguf-split-{letter}" for letter in "abcde"],
        [f"m.gguf.part{i}" for i in range(4)],
    ],
    ids=["two", "twelve", "zeros", "letters", "no-count"],
)
@pytest.mark.parametrize("named", ["first", "last", "folder"])
def test_the_command_joins_them(named: str, names: list[str], tiny: TinyModel, tmp_path: Path) -> None:
    """Whichever piece or folder is named, the command in the error makes the whole file."""
    whole = tiny.path.read_bytes()
    paths = cut(whole, names, tmp_path)
    path = {"first": paths[0], "last": paths[-1], "folder": tmp_path}[named]

    with pytest.raises(
        GGUFError, match=f"is a raw piece of .*: {len(names)} of {len(names)} pieces"
    ) as refused:
        open_model(path)
    command = str(refused.value).split("Join them: ")[1]
    subprocess.run(["bash", "-c", command], cwd=tmp_path, check=True)

    joined = tmp_path / names[0][: names[0].index(".gguf") + 5]
    assert whole == joined.read_bytes()
    assert len(open_model(tmp_path).tensors) == 71


def test_a_piece_is_missing(tiny: TinyModel, tmp_path: Path) -> None:
    """Where pieces are missing, they are to be fetched first."""
    paths = cut(tiny.path.read_bytes(), ["m.gguf.part1of3", "m.gguf.part3of3"], tmp_path)

    with pytest.raises(GGUFError) as refused:
        open_model(paths[0])
    assert str(refused.value) == (
        "m.gguf.part1of3 is a raw piece of m.gguf: 2 of 3 pieces are here; expected the joined file. "
        "Fetch the other 1, then join all of them in order with cat"
    )
