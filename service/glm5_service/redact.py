"""Keeps secrets out of every text that leaves this process: errors, logs, files for others, answers.

A secret is registered where it is read; `redact` then masks it wherever it appears. User and password inside an address
are masked in any text. Secrets of fewer than 4 characters are not looked for: they would mask ordinary words.
"""

from __future__ import annotations

import json
import logging
import re
import traceback
from typing import Final
from urllib.parse import quote, unquote

MASK: Final = "**********"
LEAST_CHARACTERS: Final = 4
# user:password@ and token@ behind ://. A host with a port (reg:5000/repo@sha256) is none
# (a path object makes one slash of the two)
_CREDENTIALS: Final = re.compile(r"(:/{1,2})(?:[^\s/?#@:'\"]*:(?!\d+(?:/|$))[^\s'\"]*|[^\s/?#@'\"]+)@")
# every form of every secret that this process has read
_forms: set[str] = set()


def register(secret: str) -> None:
    """From now on `redact` masks `secret`: whole, line by line, and as repr(), JSON or an address would write it."""
    for part in {secret, secret.strip(), *secret.splitlines()}:
        forms = {
            part,
            repr(part)[1:-1],
            ascii(part)[1:-1],
            json.dumps(part)[1:-1],
            quote(part, safe=""),
            unquote(part),
        }
        _forms.update(form for form in forms if len(form.strip()) >= LEAST_CHARACTERS)


def redact(text: str) -> str:
    """`text` without any registered secret and without the credentials of addresses."""
    for form in sorted(_forms, key=len, reverse=True):
        text = text.replace(form, MASK)
    return _CREDENTIALS.sub(rf"\1{MASK}@", text) if ":/" in text else text


def redacted_traceback(error: BaseException) -> str:
    """The traceback of `error` and its causes, without secrets."""
    return redact("".join(traceback.format_exception(error)))


class RedactingFormatter(logging.Formatter):
    """A log line without secrets, its traceback included."""

    def format(self, record: logging.LogRecord) -> str:
        """The whole line, or lines."""
        return redact(super().format(record))


def configure_logging(level: str) -> None:
    """Log to stderr, in the format of vLLM's own lines."""
    handler = logging.StreamHandler()
    handler.setFormatter(
        RedactingFormatter("glm5 %(levelname)s %(asctime)s %(message)s", datefmt="%m-%d %H:%M:%S")
    )
    logging.basicConfig(level=level.upper(), handlers=[handler])
    # it logs every request, the supervisor's own look at the engine among them
    logging.getLogger("httpx").setLevel(logging.WARNING)
