"""Text from a file or a path, made fit for a terminal, a log line and an error. The one place that does it."""

from __future__ import annotations

import unicodedata

LIMIT = 600
NAME_LIMIT = 80
# control, format and private characters, lone surrogates, unassigned code points, line and paragraph separators
_ESCAPED = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def printable(text: object, limit: int = LIMIT) -> str:
    """`text` on one line, with escapes for what is not visible, and its middle left out beyond `limit` characters."""
    whole = str(text)
    escaped = _escaped(whole[: limit + 1])
    if len(escaped) <= limit:
        return escaped
    half = limit // 2
    return f"{escaped[:half]} ... {_escaped(whole[-half:])[-half:]} ({len(whole)} characters)"


def _escaped(text: str) -> str:
    return "".join(
        char.encode("unicode_escape").decode() if unicodedata.category(char) in _ESCAPED else char
        for char in text
    )
