"""The Hugging Face folder that is built for a file without one."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from glm5_vllm.gguf.errors import GGUFError
from glm5_vllm.gguf.huggingface.folder import hf_folder_for
from tests.support.raw_gguf import RawGGUF
from tests.support.tiny_gguf import TinyModel, write_tiny
from tests.support.tiny_spec import TinySpec

FILES = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache, in the test's own folder."""
    monkeypatch.setenv("GLM5_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_folder_is_found_again(split: TinyModel) -> None:
    """Whichever split is named, the folder is the same, and it is not written anew."""
    folder = hf_folder_for(split.paths[0])
    assert folder is not None
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}

    assert folder == hf_folder_for(split.paths[2])
    assert [path.name for path in sorted(before)] == FILES
    assert before == {path: path.stat().st_mtime_ns for path in folder.iterdir()}


def test_other_model_other_folder(split: TinyModel, tmp_path: Path) -> None:
    """Two models of one name do not share a folder."""
    other = write_tiny(tmp_path / "other", TinySpec(layers=1, heads=1, experts=2))

    assert hf_folder_for(split.path) != hf_folder_for(other.path)


def test_many_at_once(split: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writers at the same time leave one whole folder and nothing else."""
    with ThreadPoolExecutor(8) as pool:
        folders = set(pool.map(hf_folder_for, [split.path] * 16))
    monkeypatch.setenv("GLM5_CACHE_DIR", str(tmp_path / "alone"))
    alone = hf_folder_for(split.path)
    assert alone is not None

    assert [contents(folder) for folder in folders if folder] == [contents(alone)]


def test_damaged_file_is_replaced(split: TinyModel) -> None:
    """A file that is not what it should be is written again."""
    folder = hf_folder_for(split.path)
    assert folder is not None
    whole = contents(folder)
    (folder / "tokenizer.json").write_text("{")
    hf_folder_for(split.path)

    assert whole == contents(folder)


@pytest.mark.parametrize("case", ["none", "folder", "text", "other-architecture", "complete"])
def test_where_none_is_needed(case: str, raw: RawGGUF, tmp_path: Path, cache: Path) -> None:
    """No folder is built for what is no lone glm-dsa file."""
    path = tmp_path / "m.gguf"
    if case == "folder":
        path.mkdir()
    elif case == "text":
        path.write_text("zai-org/GLM-5")
    elif case != "none":
        if case == "other-architecture":
            raw.set("general.architecture", "qwen3")
        else:
            (tmp_path / "config.json").touch()
            (tmp_path / "tokenizer.json").touch()
        raw.write(path)

    assert hf_folder_for(path) is None
    assert not cache.exists()


def test_broken_file(tiny: TinyModel, tmp_path: Path) -> None:
    """A broken file is refused rather than left to the next reader."""
    path = tmp_path / "m.gguf"
    path.write_bytes(tiny.path.read_bytes()[:3000])

    with pytest.raises(GGUFError, match=r"^m\.gguf: the header is truncated"):
        hf_folder_for(path)


def test_cache_that_cannot_be_written(
    split: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache that is no folder is named, with the variable that moves it."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("GLM5_CACHE_DIR", os.fspath(tmp_path / "file"))

    with pytest.raises(GGUFError) as refused:
        hf_folder_for(split.path)
    assert str(refused.value).endswith(
        "Not a directory; expected a writable folder. Set GLM5_CACHE_DIR to one"
    )
