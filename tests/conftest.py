"""Triton's interpreter has to be chosen before any test imports Triton."""

from tests.support.interpreter import choose_interpreter

choose_interpreter()
