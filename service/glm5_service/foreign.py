"""Text and numbers that others wrote: a server's headers, a file's names, a listing, a file on a shared volume.

The one place where they are parsed, cleaned and shortened. Numbers are plain decimal digits that a file size can hold.
"""

from __future__ import annotations

import json
import re
from typing import Any

LARGEST = (1 << 63) - 1
SHOWN_CHARACTERS = 400
_DIGITS = re.compile(r"[0-9]{1,19}")


def whole(value: object) -> int | None:
    """`value` as an integer of [0, 2^63): an int, or decimal digits with blanks around them. None if it is none."""
    if isinstance(value, str):
        text = value.strip(" \t")
        value = int(text) if _DIGITS.fullmatch(text) else None
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if 0 <= value <= LARGEST else None


def parse_json(data: bytes | str) -> Any:
    """The JSON document in `data`. Raises ValueError for anything else: nested too deep, numbers of thousands of
    digits and NaN included."""
    try:
        return json.loads(data, parse_constant=_no_number)
    except RecursionError:
        raise ValueError("JSON nested too deep") from None


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def plain(value: object) -> str | None:
    """`value` if it is a text of printable characters that UTF-8 can encode, else None."""
    return value if isinstance(value, str) and value and value.isprintable() else None


def clean(value: object, limit: int = SHOWN_CHARACTERS) -> str:
    """`value` as text for a message: control, direction and broken characters escaped, the middle of a long one cut."""
    text = str(value)
    count = len(text)
    if count > limit:
        half = limit // 2
        text = f"{text[:half]}...({count - 2 * half} more characters)...{text[-half:]}"
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escaped(char) for char in text)


def _escaped(char: str) -> str:
    return char.encode("unicode_escape", errors="surrogatepass").decode("ascii")
