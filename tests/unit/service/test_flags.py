"""Settings that are flags of `vllm serve`."""

from __future__ import annotations

import pytest

from glm5_service.settings.flags import ALIASES
from glm5_service.settings.schema import leaves

FLAGS = {leaf.flag: path for path, leaf in leaves().items() if leaf.flag}


def test_a_flag_belongs_to_one_setting() -> None:
    """No two settings become the same flag."""
    assert len(FLAGS) == sum(1 for leaf in leaves().values() if leaf.flag)


@pytest.mark.parametrize("alias", ALIASES)
def test_a_flag_is_known_by_its_long_name(alias: str) -> None:
    """A setting names the flag that an alias stands for, never the alias."""
    assert alias not in FLAGS
