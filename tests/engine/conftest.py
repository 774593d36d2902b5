"""What engine tests share: a model, and more time than an engine may take to start."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.hf_model import random_config, save_random_model
from tests.support.serving import START_SECONDS

# a start or two, and what is asked of the engine
TEST_SECONDS = 3 * START_SECONDS


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The time limit of every test with an engine that states none of its own."""
    for item in items:
        if item.get_closest_marker("engine") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(TEST_SECONDS))


@pytest.fixture(scope="session")
def random_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GLM-5-architecture model with random weights and index_topk 64, in HF format."""
    folder = tmp_path_factory.mktemp("random-topk64")
    save_random_model(folder, random_config(64))
    return folder
