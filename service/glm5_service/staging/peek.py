"""A look at the first bytes of a GGUF while it is still being fetched: hours before the real reader can run.

Only tells what is certainly wrong; the plugin's header reader decides when the file is whole.
"""

from __future__ import annotations

import re

from glm5_service.staging.reasons import Reason, StagingError

PEEK_BYTES = 65536
_STRING_TYPE = (8).to_bytes(4, "little")
_ARCHITECTURE = b"general.architecture" + _STRING_TYPE
_VALUE = re.compile(rb"[\w.-]{1,64}")


def peek(name: str, head: bytes, expected_architecture: str) -> None:
    """Raise StagingError if `head`, the first bytes of `name`, cannot be a GGUF of that architecture."""
    if head[:4] != b"GGUF":
        kind = "a Git LFS pointer" if head.startswith(b"version https://git-lfs") else f"{head[:16]!r}"
        raise StagingError(Reason.NOT_A_MODEL, f"first bytes of {name}", kind, expected="GGUF")
    found = architecture_in(head)
    if expected_architecture and found and found != expected_architecture:
        raise StagingError(
            Reason.WRONG_ARCHITECTURE, f"architecture of {name}", found, expected=expected_architecture
        )


def architecture_in(head: bytes) -> str | None:
    """The value of general.architecture if it is in `head`; writers put it first."""
    at = head.find(_ARCHITECTURE)
    if at < 0:
        return None
    value_at = at + len(_ARCHITECTURE)
    length = int.from_bytes(head[value_at : value_at + 8], "little")
    value = head[value_at + 8 : value_at + 8 + length]
    return value.decode() if length and _VALUE.fullmatch(value) and len(value) == length else None
