"""Models that several engine tests share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.hf_model import random_config, save_random_model


@pytest.fixture(scope="session")
def random_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GLM-5-architecture model with random weights and index_topk 64, in HF format."""
    folder = tmp_path_factory.mktemp("random-topk64")
    save_random_model(folder, random_config(64))
    return folder
