"""Reads the body of a request within limits, before anything else parses it. Pure and synchronous.

Its size in JSON is counted first, by searches that run in C and never go back, so that parsing costs no more than the
limits allow. `tests/bench/json_bounds.py` compares this with ijson, whose time is quadratic in the length of a string
that arrives in parts, and with orjson, which builds what it is given.
"""

from __future__ import annotations

import json
import re

from glm5_service.api.policy import BodyLimits

# possessive, so that its memory does not grow
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_OPENING = frozenset(b"[{")
# more digits than any number has that a request may need; python reads no integer of more than 4300
_LONG_NUMBER = re.compile(rb"(?<![0-9])[0-9]{100}")


class BodyError(ValueError):
    """The body is not one that may pass: `reason` is one of the gate's refusals."""

    def __init__(self, reason: str, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason


def parse(body: bytes, limits: BodyLimits) -> object:
    """The JSON value in `body`, UTF-8 without a byte order mark.

    Raises:
        BodyError: `json` where it is no JSON that vLLM could read, `elements` where it holds too much of it.
    """
    _count(body, limits)
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise BodyError("json", f"request body is not UTF-8: byte {error.start}") from None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BodyError("json", f"request body is not JSON: {error}"[:300]) from None
    if "\\ud" in text or "\\uD" in text:
        _refuse_surrogates(value)
    return value


def _count(body: bytes, limits: BodyLimits) -> None:
    # each string becomes one quotation mark
    skeleton, strings = _STRING.subn(b'"', body, count=limits.max_elements + 1)
    elements = strings + skeleton.count(b"[") + skeleton.count(b"{")
    if elements > limits.max_elements:
        raise BodyError(
            "elements", f"request body holds more than {limits.max_elements} strings, lists and objects"
        )
    if skeleton.count(b",") > limits.max_numbers:
        raise BodyError("elements", f"request body holds more than {limits.max_numbers} values")
    depth = 0
    for bracket in skeleton.translate(None, _NO_BRACKETS):
        depth += 1 if bracket in _OPENING else -1
        if depth > limits.max_depth:
            raise BodyError("elements", f"request body is nested deeper than {limits.max_depth} levels")
    if _LONG_NUMBER.search(skeleton):
        raise BodyError("json", "request body holds a number of more than 100 digits")


def _refuse_surrogates(value: object) -> None:
    left = [value]
    while left:
        item = left.pop()
        if isinstance(item, str):
            try:
                item.encode()
            except UnicodeEncodeError:
                raise BodyError("json", "request body holds half of a surrogate pair in a string") from None
        elif isinstance(item, dict):
            left += item.keys()
            left += item.values()
        elif isinstance(item, list):
            left += item
