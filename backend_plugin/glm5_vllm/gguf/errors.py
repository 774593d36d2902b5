"""The one error of the GGUF path, and the remedies that several checks name."""

from __future__ import annotations

CHECK_PATH = "Check the path and its permissions"
FETCH_AGAIN = "Fetch the file again"
CONVERT = "Convert the model with a current llama.cpp"
FETCH_OR_CONVERT = f"{FETCH_AGAIN}, or convert it with a current llama.cpp"


class GGUFError(Exception):
    """A GGUF file cannot be served; one sentence: what failed, the value, what was expected, what to do."""

    def __init__(self, what: str, value: object = None, *, expected: str = "", remedy: str = "") -> None:
        text = what if value is None else f"{what}: {value}"
        if expected:
            text += f"; expected {expected}"
        super().__init__(f"{text}. {remedy}" if remedy else text)
