"""The one error of the GGUF path."""

from __future__ import annotations


class GGUFError(Exception):
    """A GGUF file cannot be served; one sentence: what failed, the value, what was expected, what to do."""

    def __init__(self, what: str, value: object = None, *, expected: str = "", remedy: str = "") -> None:
        text = what if value is None else f"{what}: {value}"
        if expected:
            text += f"; expected {expected}"
        super().__init__(f"{text}. {remedy}" if remedy else text)
