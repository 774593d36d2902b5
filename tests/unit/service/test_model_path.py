"""Which file of a folder is the model, and what a missing plugin means."""

from __future__ import annotations

from pathlib import Path

import pytest

from glm5_service.errors import EngineError, SettingsError
from glm5_service.model.inspection import locate, require_plugin


def _touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).touch()


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["glm-00002-of-00002.gguf", "glm-00001-of-00002.gguf", "manifest.json"], "glm-00001-of-00002.gguf"),
        (["one.gguf", "config.json"], "one.gguf"),
        (["config.json", "model.safetensors"], "."),
    ],
)
def test_folder_with_one_model(tmp_path: Path, names: list[str], found: str) -> None:
    """A folder stands for the first file of its one set, or for itself if it is a Hugging Face folder."""
    _touch(tmp_path, *names)
    assert locate(tmp_path) == tmp_path / found


def test_any_split_is_taken_as_named(tmp_path: Path) -> None:
    """A file that is named is handed on as it is; the loader finds its siblings."""
    _touch(tmp_path, "glm-00002-of-00002.gguf")
    assert locate(tmp_path / "glm-00002-of-00002.gguf").name == "glm-00002-of-00002.gguf"


def test_folder_with_two_models_is_refused(tmp_path: Path) -> None:
    """Two sets in one folder are not guessed between; both are named."""
    _touch(tmp_path, "a-00001-of-00001.gguf", "b.gguf")
    with pytest.raises(SettingsError, match=r"several models.*a-00001-of-00001\.gguf, b\.gguf"):
        locate(tmp_path)


def test_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    """An empty folder is a wrong setting."""
    with pytest.raises(SettingsError, match="no model in folder"):
        locate(tmp_path)


@pytest.mark.parametrize("path", ["x" * 5000, "a/" * 2500], ids=["name", "depth"])
def test_impossible_path_is_refused(path: str) -> None:
    """A path that no file system takes is a wrong setting, and shown short."""
    with pytest.raises(SettingsError, match=r"^cannot read the model path: ") as refused:
        locate(Path(path))
    assert len(str(refused.value)) < 1500


def test_raw_pieces_are_left_to_the_plugin(tmp_path: Path) -> None:
    """A folder with pieces of a file names the first; the plugin says how to join them."""
    _touch(tmp_path, "m.gguf.part2of2", "m.gguf.part1of2")
    assert locate(tmp_path).name == "m.gguf.part1of2"


def test_missing_plugin_is_named() -> None:
    """Without glm5-vllm the error says so and where it was looked for."""
    with pytest.raises(EngineError, match="the engine plugin is not installed"):
        require_plugin(lambda name: None)
