"""What a request may hold: hostile bodies are refused for their own reason, honest ones of the same kind pass."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest

from glm5_service.api.body import BodyError, parse
from glm5_service.api.policy import BodyLimits, GatePolicy
from glm5_service.api.rules import check

POLICY = GatePolicy("token")
USER = {"role": "user", "content": "hello"}


def refusal(body: bytes | dict[str, Any]) -> tuple[str, str]:
    """Reason and sentence; empty if it passes."""
    try:
        check(body if isinstance(body, bytes) else json.dumps(body).encode(), POLICY)
    except BodyError as error:
        return error.reason, str(error)
    return "", ""


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": "glm-5", "messages": [USER], **fields}


def schema(value: Any) -> dict[str, Any]:
    return chat(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": value}})


def alternatives(depth: int, width: int) -> dict[str, Any]:
    """oneOf in oneOf."""
    if depth == 0:
        return {"type": "string"}
    return {"oneOf": [alternatives(depth - 1, width)] * width}


HOSTILE: dict[str, tuple[str, bytes | dict[str, Any]]] = {
    "3 million empty messages": ("elements", b'{"messages":[' + b"{}," * 3_000_000 + b"{}]}"),
    "80,000 empty messages": ("elements", b'{"messages":[' + b"{}," * 80_000 + b"{}]}"),
    "400,000 valid messages": ("elements", b'{"messages":[' + b'{"role":"user","content":"a"},' * 400_000 + b"{}]}"),
    "900,000 parts": (
        "elements",
        b'{"messages":[{"role":"user","content":[' + b'{"type":"text"},' * 900_000 + b"{}]}]}",
    ),
    "20,000 valid messages": ("elements", chat(messages=[USER] * 20_000)),
    "messages of null": ("elements", b'{"messages":[' + b"null," * 3_000_000 + b"1]}"),
    "messages of numbers": ("elements", b'{"messages":[' + b"1," * 500_000 + b"1]}"),
    "an empty message": ("shape", chat(messages=[{}])),
    "a message that is a number": ("shape", chat(messages=[1])),
    "content that is a number": ("shape", chat(messages=[{"role": "user", "content": 5}])),
    "a part that is null": ("shape", chat(messages=[{"role": "user", "content": [None]}])),
    "tools": ("elements", chat(tools=[{"type": "function"}] * 1000)),
    "stop strings": ("elements", chat(stop=["a"] * 100)),
    "bad words": ("elements", chat(bad_words=["a"] * 2000)),
    "logit_bias": ("elements", chat(logit_bias={str(n): 1 for n in range(2000)})),
    "answers": ("elements", chat(n=1000)),
    "answers to many prompts": ("elements", {"prompt": ["a"] * 100, "n": 100}),
    "prompts": ("elements", {"prompt": ["a"] * 200}),
    "an unknown list": ("elements", chat(anything=["a"] * 6000)),
    "an unknown object": ("elements", chat(anything={str(n): 1 for n in range(6000)})),
    "deep lists": ("elements", b"[" * 1_000_000),
    "deep objects": ("elements", b'{"a":' * 100_000),
    "numbers": ("elements", b'{"prompt":[' + b"1," * 3_000_000 + b"1]}"),
    "a long number": ("json", b'{"temperature":' + b"1" * 5000 + b"}"),
    "no JSON": ("json", b'{"model": glm}'),
    "half a body": ("json", b'{"model": "glm-5'),
    "UTF-16": ("json", '{"model": "glm-5"}'.encode("utf-16")),
    "no UTF-8": ("json", b'{"model": "\xff"}'),
    "an encoded surrogate": ("json", b'{"stop": "\xed\xa0\x80"}'),
    "a surrogate in stop": ("json", chat(stop=["\ud800"])),
    "a surrogate in bad_words": ("json", chat(bad_words=["a\udfff"])),
    "a surrogate in a key": ("json", chat(logit_bias={"\ud800": 1})),
    "a surrogate in a message": ("json", chat(messages=[{"role": "user", "content": "\udc00"}])),
    "a list": ("shape", b"[]"),
    "a string": ("shape", b'"a"'),
    "700,000 choices": (
        "elements",
        b'{"structured_outputs":{"choice":[' + b'"abcdefg",' * 700_000 + b'"a"]}}',
    ),
    "2,000 choices": ("elements", chat(structured_outputs={"choice": ["a"] * 2000})),
    "20,000 properties": ("elements", schema({"properties": {str(n): {} for n in range(20_000)}})),
    "properties in many objects": (
        "grammar",
        schema({"anyOf": [{"properties": {str(n): {} for n in range(400)}}] * 20}),
    ),
    "an enum of 100,000": ("elements", schema({"enum": [str(n) for n in range(90_000)]})),
    "many enums": ("grammar", schema({"anyOf": [{"enum": [str(n) for n in range(400)]}] * 20})),
    "oneOf 30x30x30": ("grammar", schema(alternatives(3, 30))),
    "a deep schema": ("grammar", schema(json.loads('{"items":' * 40 + "{}" + "}" * 40))),
    "a long repetition": ("grammar", schema({"type": "string", "maxLength": 10**9})),
    "a long schema": ("grammar", schema({"description": "x" * 300_000})),
    "a schema in a string": (
        "grammar",
        chat(structured_outputs={"json": json.dumps({"anyOf": [{"enum": [str(n) for n in range(400)]}] * 20})}),
    ),
    "a tool's schema": (
        "grammar",
        chat(tools=[{"type": "function", "function": {"name": "f", "parameters": alternatives(3, 30)}}]),
    ),
    "a tag's schema": (
        "grammar",
        chat(
            response_format={
                "type": "structural_tag",
                "structures": [{"begin": "<a>", "schema": alternatives(3, 30), "end": "</a>"}],
                "triggers": ["<a>"],
            }
        ),
    ),
    "a tag in a string": (
        "grammar",
        chat(structured_outputs={"structural_tag": json.dumps({"format": {"json_schema": alternatives(3, 30)}})}),
    ),
    "a regex of 1 MB": ("grammar", chat(structured_outputs={"regex": "a" * 1_000_000})),
    "a pattern of 1 MB": ("grammar", schema({"type": "string", "pattern": "a" * 100_000})),
    "a grammar of 1 MB": ("grammar", chat(structured_outputs={"grammar": "a" * 1_000_000})),
    "a schema that is itself": ("grammar", schema({"$ref": "#"})),
    "references in a circle": (
        "grammar",
        schema({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_bodies_are_refused(name: str) -> None:
    """Each is refused for its own reason, with a short sentence."""
    expected, body = HOSTILE[name]
    reason, sentence = refusal(body)
    assert (reason, len(sentence) < 400) == (expected, True)


HONEST: dict[str, bytes | dict[str, Any]] = {
    "a chat": chat(),
    "4,000 messages": chat(messages=[USER, {"role": "assistant", "content": None}] * 2000),
    "a million token ids": b'{"prompt":[' + b"151000," * 1_000_000 + b"1]}",
    "prompts of token ids": {"prompt": [[1, 2, 3] * 5000] * 100},
    "a prompt of 10 MB": {"prompt": 'a, "quoted" line\n' * 500_000},
    "escapes only": b'{"prompt":"' + b"\\n" * 5_000_000 + b'"}',
    "numbers just short enough": b'{"prompt":[' + (b"1" * 99 + b",") * 5000 + b"1]}",
    "an emoji by escapes": {"prompt": "\U0001f600"},
    "a null byte in a string": {"prompt": "\x00"},
    "digits in a string": {"prompt": "1" * 10_000},
    "brackets in a string": {"prompt": "[" * 1_000_000},
    "keys of a schema as names": schema({"properties": {"enum": {"type": "string"}, "$ref": {"type": "string"}}}),
    "a tree": schema({"properties": {"next": {"$ref": "#"}, "name": {"type": "string"}}}),
    "1,000 enum entries": schema({"enum": [str(n) for n in range(1000)]}),
    "100 choices": chat(structured_outputs={"choice": [str(n) for n in range(100)]}),
    "128 tools": chat(tools=[{"type": "function", "function": {"name": f"f{n}", "parameters": {}}} for n in range(128)]),
    "200 tools of 20 properties": chat(
        tools=[
            {
                "type": "function",
                "function": {
                    "name": f"f{n}",
                    "parameters": {"properties": {f"p{m}": {"type": "string", "maxLength": 10**6} for m in range(20)}},
                },
            }
            for n in range(200)
        ]
    ),
    "a reference elsewhere": schema({"$ref": "https://example.com/schema"}),
}  # fmt: skip


@pytest.mark.parametrize("name", HONEST)
def test_honest_bodies_pass(name: str) -> None:
    """The limits are beyond what clients send."""
    assert refusal(HONEST[name]) == ("", "")


@pytest.mark.parametrize("body", [b"[" + b"{}," * 3_000_000 + b"{}]", b"[" * 5_000_000], ids=["wide", "deep"])
def test_a_hostile_body_costs_no_memory(body: bytes) -> None:
    """What is refused for its size is never built: the peak stays below the size of the body itself."""
    tracemalloc.start()
    try:
        with pytest.raises(BodyError):
            parse(body, BodyLimits())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 3_000_000


@pytest.mark.parametrize("value", ['a"b', "\\", '\\"', "[{,:}]", "\u2028", "x" * 100, ""])
def test_counting_agrees_with_the_parser(value: str) -> None:
    """A string is one element whatever is in it, so limits can't be evaded or hit by quoting."""
    body = json.dumps([value, {"k": value}]).encode()
    parse(body, BodyLimits(max_elements=5, max_depth=2, max_numbers=1))
    with pytest.raises(BodyError):
        parse(body, BodyLimits(max_elements=4))
    with pytest.raises(BodyError):
        parse(body, BodyLimits(max_depth=1))
