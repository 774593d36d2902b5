"""Models that several tests read, written once."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.glm5_header import write_glm5
from tests.support.raw_gguf import RawGGUF
from tests.support.tiny_gguf import TinyModel, write_tiny
from tests.support.tiny_spec import SMALL


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    """A whole model in one file: one dense layer, one with experts, and the MTP block."""
    return write_tiny(tmp_path_factory.mktemp("tiny"), replace(SMALL, mtp=True))


@pytest.fixture(scope="session")
def split(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    """A model of two layers in three splits."""
    return write_tiny(tmp_path_factory.mktemp("split"), replace(SMALL, splits=3, seed=1))


@pytest.fixture(scope="session")
def glm5(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """GLM-5 at its real size in ten sparse splits: headers without data."""
    return write_glm5(tmp_path_factory.mktemp("glm5"))


@pytest.fixture(scope="session")
def _raw_of_tiny(tiny: TinyModel) -> RawGGUF:
    return RawGGUF.read(tiny.path)


@pytest.fixture
def raw(_raw_of_tiny: RawGGUF) -> RawGGUF:
    """The file of `tiny`, to be changed and written elsewhere."""
    return copy.deepcopy(_raw_of_tiny)


@pytest.fixture
def split_copy(split: TinyModel, tmp_path: Path) -> list[Path]:
    """The splits of `split`, hard links in a folder of their own."""
    for path in split.paths:
        (tmp_path / path.name).hardlink_to(path)
    return sorted(tmp_path.iterdir())
