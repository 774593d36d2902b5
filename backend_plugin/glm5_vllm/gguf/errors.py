"""The one error of the GGUF path, and the remedies that several checks name."""

from __future__ import annotations

from glm5_vllm.gguf.printable import printable

CHECK_PATH = "Check the path and its permissions"
FETCH_AGAIN = "Fetch the file again"
CONVERT = "Convert the model with a current llama.cpp"
OTHER_LAYOUT = "Another tool laid this file out: use one that a current llama.cpp converted"
FETCH_OR_CONVERT = f"{FETCH_AGAIN}, or convert it with a current llama.cpp"


class GGUFError(Exception):
    """A GGUF file cannot be served; one sentence: what failed, the value, what was expected, what to do.

    Each part is made printable, for it may quote the file.
    """

    def __init__(self, what: str, value: object = None, *, expected: str = "", remedy: str = "") -> None:
        text = printable(what) if value is None else f"{printable(what)}: {printable(value)}"
        if expected:
            text += f"; expected {printable(expected)}"
        super().__init__(f"{text}. {printable(remedy)}" if remedy else text)


def unreadable(path: object, error: OSError | ValueError) -> GGUFError:
    """The error for a path that cannot be opened, to be raised; a ValueError is a path that no system call takes."""
    reason = error.strerror if isinstance(error, OSError) else str(error)
    return GGUFError(f"cannot read {path}", reason, remedy=CHECK_PATH)
