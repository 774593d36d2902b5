"""What a parsed request may ask for: lengths of lists, shape of messages, size of schemas and grammars. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from glm5_service.api.body import BodyError, parse
from glm5_service.api.policy import (
    ALTERNATIVES,
    CONVERSATION_LISTS,
    GRAMMAR_KEYS,
    LIST_ITEMS,
    MAX_ANSWERS,
    MAX_SEQUENCES,
    OBJECT_ITEMS,
    OTHER_ITEMS,
    REGEX_KEYS,
    REPEATS,
    SCHEMA_KEYS,
    TOKEN_LISTS,
    TOOL_SCHEMA_KEYS,
    BodyLimits,
    GatePolicy,
    SchemaLimits,
)


def check(body: bytes, policy: GatePolicy) -> None:
    """Raise BodyError unless the request in `body` may pass: `json`, `elements`, `shape` or `grammar`."""
    request = parse(body, policy.body)
    if not isinstance(request, dict):
        raise BodyError("shape", f"request body is a JSON {_kind(request)}; expected an object")
    _check_lengths(request, policy.body.max_messages)
    _check_messages(request)
    _check_answers(request)
    _check_constraints(request, policy)


def _kind(value: object) -> str:
    names = {dict: "object", list: "list", str: "string", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")


def _walk(value: object, key: str = "") -> Iterator[tuple[str, Any]]:
    """Every list and object, under the key that holds it; entries of a list stand under no key."""
    left: list[tuple[str, Any]] = [(key, value)]
    while left:
        name, item = left.pop()
        if isinstance(item, dict):
            yield name, item
            left += [(each, inner) for each, inner in item.items() if isinstance(inner, (dict, list))]
        elif isinstance(item, list):
            yield name, item
            left += [("", inner) for inner in item if isinstance(inner, (dict, list))]


def _check_lengths(request: dict[str, Any], max_messages: int) -> None:
    for key, item in _walk(request):
        if isinstance(item, dict):
            allowed = OBJECT_ITEMS.get(key, OTHER_ITEMS)
        else:
            allowed = max_messages if key in CONVERSATION_LISTS else LIST_ITEMS.get(key, OTHER_ITEMS)
            # `prompt` may be a list of lists of ids
            if len(item) > allowed and key in TOKEN_LISTS | {""} and all(type(each) is int for each in item):
                continue
        if len(item) > allowed:
            where = f"'{key}'" if key else "a list"
            raise BodyError("elements", f"{where} has {len(item)} entries; at most {allowed} are allowed")


def _check_messages(request: dict[str, Any]) -> None:
    """Each message an object with a role; vLLM's own error for one that is not holds 14 KB, for each of them."""
    messages = request.get("messages")
    if not isinstance(messages, list):
        return
    for number, message in enumerate(messages):
        where = f"messages[{number}]"
        if not isinstance(message, dict):
            raise BodyError("shape", f"{where} is a {_kind(message)}; expected an object")
        if not isinstance(message.get("role"), str):
            raise BodyError("shape", f"{where} has no role; expected a string such as 'user'")
        content = message.get("content")
        if not isinstance(content, (str, list, type(None))):
            raise BodyError(
                "shape", f"{where}.content is a {_kind(content)}; expected a string or a list of parts"
            )
        for part in content if isinstance(content, list) else ():
            if not isinstance(part, (dict, str)) or (
                isinstance(part, dict) and not isinstance(part.get("type"), str)
            ):
                raise BodyError("shape", f"{where}.content has a part without a type")


def _check_answers(request: dict[str, Any]) -> None:
    answers = max((request[key] for key in ("n", "best_of") if type(request.get(key)) is int), default=1)
    prompt = request.get("prompt")
    is_many = isinstance(prompt, list) and bool(prompt) and not isinstance(prompt[0], int)
    prompts = len(prompt or ()) if is_many else 1
    if answers > MAX_ANSWERS or answers * prompts > MAX_SEQUENCES:
        raise BodyError(
            "elements",
            f"{answers} answers to {prompts} prompts are asked for; at most {MAX_ANSWERS} a prompt, "
            f"and {MAX_SEQUENCES} in all, are allowed",
        )


@dataclass
class _Sums:
    """What all schemas of a request hold together."""

    properties: int = 0
    enum_entries: int = 0
    alternatives: int = 0
    repeats: int = 0


def _check_constraints(request: dict[str, Any], policy: GatePolicy) -> None:
    limits, sums = policy.schema, _Sums()
    tool_limits, tool_sums = limits.of_tools(), _Sums()
    for _, item in _walk(request):
        if not isinstance(item, dict):
            continue
        for key, value in item.items():
            if key in SCHEMA_KEYS and isinstance(value, (dict, str)):
                _check_schema(value, limits, sums)
            elif key in TOOL_SCHEMA_KEYS and isinstance(value, (dict, str)):
                _check_schema(value, tool_limits, tool_sums)
            elif key in REGEX_KEYS:
                _check_text(key, value, limits.max_regex_characters)
            elif key in GRAMMAR_KEYS:
                _check_text(key, value, limits.max_grammar_characters)
                if key == "structural_tag" and isinstance(value, str):
                    _check_constraints({key: _inner(value, limits)}, policy)


def _check_text(key: str, value: object, allowed: int) -> None:
    if isinstance(value, str) and len(value) > allowed:
        raise BodyError("grammar", f"'{key}' has {len(value)} characters; at most {allowed} are allowed")


def _inner(text: str, limits: SchemaLimits) -> object:
    """JSON within a string; what is none is left to vLLM, whose error says so."""
    _check_text("schema", text, limits.max_bytes)
    try:
        return parse(text.encode(), BodyLimits(max_depth=limits.max_depth + 8))
    except BodyError as error:
        if error.reason == "json":
            return None
        raise


def _check_schema(schema: object, limits: SchemaLimits, sums: _Sums) -> None:
    if isinstance(schema, str):
        schema = _inner(schema, limits)
    if not isinstance(schema, dict):
        return
    if len(json.dumps(schema)) > limits.max_bytes:
        raise BodyError("grammar", f"a schema has more than {limits.max_bytes} bytes")
    _check_depth(schema, limits.max_depth)
    for _, item in _walk(schema):
        if isinstance(item, dict):
            _add(item, sums, limits)
    for name, allowed in (
        ("properties", limits.max_properties),
        ("enum_entries", limits.max_enum_entries),
        ("alternatives", limits.max_alternatives),
        ("repeats", limits.max_repeats),
    ):
        if getattr(sums, name) > allowed:
            what = name.replace("_", " ")
            raise BodyError(
                "grammar", f"the schemas have {getattr(sums, name)} {what}; at most {allowed} are allowed"
            )
    _check_references(schema)


def _check_depth(schema: object, allowed: int) -> None:
    level, depth = [schema], 0
    while level:
        depth += 1
        if depth > allowed:
            raise BodyError("grammar", f"a schema is nested deeper than {allowed} levels")
        level = [
            inner
            for item in level
            for inner in (item.values() if isinstance(item, dict) else item if isinstance(item, list) else ())
            if isinstance(inner, (dict, list))
        ]


def _add(item: dict[str, Any], sums: _Sums, limits: SchemaLimits) -> None:
    for key in ("properties", "patternProperties", "$defs", "definitions"):
        sums.properties += len(item[key]) if isinstance(item.get(key), dict) else 0
    sums.enum_entries += len(item["enum"]) if isinstance(item.get("enum"), list) else 0
    for key in ALTERNATIVES:
        sums.alternatives += len(item[key]) if isinstance(item.get(key), list) else 0
    for key in REPEATS:
        value = item.get(key)
        sums.repeats += int(value) if isinstance(value, int) and value > 0 else 0
    _check_text("pattern", item.get("pattern"), limits.max_regex_characters)


def _check_references(schema: dict[str, Any]) -> None:
    """References that lead back to themselves without a part of the answer between them describe nothing."""
    for _, item in _walk(schema):
        if not isinstance(item, dict) or not isinstance(item.get("$ref"), str):
            continue
        seen: set[str] = set()
        at: object = item
        while isinstance(at, dict) and isinstance(at.get("$ref"), str):
            reference = at["$ref"]
            if reference in seen:
                raise BodyError("grammar", f"the schema's $ref {reference[:100]!r} refers to itself")
            seen.add(reference)
            at = _resolve(schema, reference)


def _resolve(schema: dict[str, Any], reference: str) -> object:
    at: object = schema
    if not reference.startswith("#"):
        return None
    for part in reference[1:].split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(at, list) and name.isdecimal() and len(name) < 6 and int(name) < len(at):
            at = at[int(name)]
        elif isinstance(at, dict):
            at = at.get(name)
        else:
            return None
    return at
