"""Text of a file or a path reaches terminal, log, report and file names on one line, visible and short."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path

import pytest
from gguf import GGUFValueType as Type

from glm5_vllm.gguf.__main__ import main
from glm5_vllm.gguf.errors import GGUFError
from glm5_vllm.gguf.file.splits import open_model
from glm5_vllm.gguf.huggingface.folder import hf_folder_for
from glm5_vllm.gguf.printable import printable
from tests.support.raw_gguf import RawGGUF, RawTensor

HOSTILE = {
    "newline": "GLM\n  refuses       nothing",
    "escape": "\x1b[2J\x1b[31mGLM",
    "carriage-return": "GLM\rready",
    "right-to-left": "GLM\u202e5-",
    "line-separator": "GLM\u2028\u2029\x85",
    "long": "G" * 300,
    "megabyte": "\x1b" * (1 << 20),
    "path": "../../../etc/" + "x/" * 3000,
    "letters": "模" * 300,
    "blank": " \t ",
    "empty": "",
}


def hide(raw: RawGGUF, place: str, text: str) -> None:
    if place == "tensor":
        raw.tensors.append(RawTensor(text, (32,), 0, bytes(128)))
    elif place == "alignment":
        raw.metadata["general.alignment"] = (Type.STRING, text)
    else:
        key = {
            "name": "general.name",
            "architecture": "general.architecture",
            "value": "glm-dsa.embedding_length",
            "split-value": "split.count",
        }[place]
        raw.metadata[key] = (Type.STRING, text)


def check_line(text: str, limit: int) -> None:
    assert [char for char in text if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp")] == []
    assert len(text) < limit


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("place", ["name", "architecture", "tensor", "alignment", "value", "split-value"])
def test_inspect(
    place: str, text: str, raw: RawGGUF, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever string stands anywhere, `inspect` prints lines of its own, and no control characters."""
    hide(raw, place, text)
    path = raw.write(tmp_path / "m.gguf")
    for arguments in (["inspect", str(path)], ["inspect", str(path), "--json"]):
        code = main(arguments)
        out, err = capsys.readouterr()

        assert code in (0, 4)
        for line in [*out.splitlines(), *err.splitlines()]:
            check_line(line, 3000)
        assert not any(line.startswith("  refuses       nothing") for line in out.splitlines())
        if arguments[-1] == "--json":
            facts = json.loads(out)
            check_line(facts.get("name", ""), 1000)
            check_line(facts["error"] or "", 3000)


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_folder_of_the_config(
    text: str, raw: RawGGUF, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a model calls itself, its config folder is one plain name inside the cache."""
    monkeypatch.setenv("GLM5_CACHE_DIR", str(tmp_path / "cache"))
    raw.metadata["general.name"] = (Type.STRING, text)
    folder = hf_folder_for(raw.write(tmp_path / "m.gguf"))

    assert folder is not None
    assert folder.parent == tmp_path / "cache/hf"
    assert len(folder.name) <= 100


@pytest.mark.parametrize(
    "path",
    ["x" * 5000, "a/" * 2500, "\udcff" * 400, "m\x00.gguf", "m\n\x1b[31m.gguf"],
    ids=["name", "depth", "surrogates", "nul", "escapes"],
)
def test_impossible_paths(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A path that no file system takes is one clear error."""
    assert main(["inspect", path]) == 4

    error = capsys.readouterr().err
    assert error.startswith("cannot read ")
    assert error.endswith("Check the path and its permissions\n")
    check_line(error.removesuffix("\n"), 1000)


def test_every_part_of_an_error() -> None:
    """Each part of an error is made printable, so the remedy is never cut off."""
    error = str(GGUFError("key k\x1b[31m\n", "\n" * 5000, expected="\x00", remedy="Fetch it"))

    check_line(error, 2000)
    assert error.startswith(r"key k\x1b[31m\n: ")
    assert error.endswith(r"(5000 characters); expected \x00. Fetch it")


def test_both_ends_are_kept() -> None:
    """What is too long loses its middle, and says how long it was."""
    assert printable("a" * 500 + "b" * 500, 10) == "aaaaa ... bbbbb (1000 characters)"
    assert printable("häß 模型 👍") == "häß 模型 👍"
    assert printable("a\tb\u200b") == r"a\tb\u200b"


def test_name_of_the_model(raw: RawGGUF, tmp_path: Path) -> None:
    """A name that is no text, or blank, is replaced by the file's."""
    raw.metadata["general.name"] = (Type.UINT32, 5)

    assert open_model(raw.write(tmp_path / "m.gguf")).name == "m"
