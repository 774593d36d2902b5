"""Reads the body of a request within limits, before anything else parses it. Pure and synchronous.

The tokens are counted first, with a regular expression that never goes back, so that parsing costs no more memory than
the limits allow. `tests/bench/json_bounds.py` compares it with ijson, whose time is quadratic in the length of a string
that arrives in parts, and with orjson, which builds what it is given.
"""

from __future__ import annotations

import json
import re
from itertools import islice

from glm5_service.api.policy import BodyLimits

# a string, a bracket, or everything up to the next of these; possessive, so that its memory does not grow
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[\]{}]|[^"\[\]{}]++', re.DOTALL)
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_MAX_DIGITS = re.compile(r"[0-9]{400}")
_OPENING, _CLOSING = b"[{", b"]}"


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
    if _MAX_DIGITS.search(text):
        _refuse_long_numbers(body)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BodyError("json", f"request body is not JSON: {error}"[:300]) from None
    if _SURROGATE.search(text):
        _refuse_surrogates(value)
    return value


def _count(body: bytes, limits: BodyLimits) -> None:
    depth = deepest = elements = numbers = 0
    tokens = _TOKEN.finditer(body)
    # a chunk at a time, so that a body far beyond the limits is read no further
    while chunk := list(islice(tokens, 10_000)):
        for match in chunk:
            first = body[match.start()]
            if first in _OPENING:
                elements += 1
                depth += 1
                deepest = max(deepest, depth)
            elif first in _CLOSING:
                depth -= 1
            elif first == 0x22:
                elements += 1
            else:
                numbers += body.count(b",", match.start(), match.end())
        if deepest > limits.max_depth:
            raise BodyError("elements", f"request body is nested deeper than {limits.max_depth} levels")
        if elements > limits.max_elements:
            raise BodyError(
                "elements", f"request body holds more than {limits.max_elements} strings, lists and objects"
            )
        if numbers > limits.max_numbers:
            raise BodyError("elements", f"request body holds more than {limits.max_numbers} values")


def _refuse_long_numbers(body: bytes) -> None:
    for match in _TOKEN.finditer(body):
        if body[match.start()] not in b'"[]{}' and re.search(rb"[0-9]{400}", match.group()):
            raise BodyError("json", "request body holds a number of more than 400 digits")


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
