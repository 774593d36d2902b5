"""Chooses Triton's interpreter before a test imports Triton, and has shared assertions rewritten before their import."""

import pytest

from tests.support.interpreter import choose_interpreter

choose_interpreter()
pytest.register_assert_rewrite("tests.support.sparse_case")
