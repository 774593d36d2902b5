"""values.schema.json: types and ranges of the chart's values, of the service's settings, and of old names.

Numbers are accepted as text, because `helm --set` makes text of a decimal number. `tables` carries their ranges for the
templates, which check the text.
"""

from __future__ import annotations

from typing import Any

from charts.reference.comments import Entry

Schema = dict[str, Any]

_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_PART = "[a-z0-9]+([._-]+[a-z0-9]+)*"
# what `is` in a @schema line stands for: the names that Kubernetes and registries accept
KINDS: dict[str, Schema] = {
    "objectName": {"type": "string", "pattern": rf"^$|^{_LABEL}(\.{_LABEL})*$", "maxLength": 253},
    "host": {"type": "string", "pattern": rf"^(\*\.)?{_LABEL}(\.{_LABEL})*$", "maxLength": 253},
    "nameOverride": {"type": "string", "pattern": rf"^$|^{_LABEL}$", "maxLength": 63},
    "fullnameOverride": {"type": "string", "pattern": "^$|^[a-z]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63},
    "resource": {"type": "string", "pattern": rf"^({_LABEL}(\.{_LABEL})*/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"},
    "registry": {"type": "string", "pattern": rf"^$|^{_LABEL}(\.{_LABEL})*(:[0-9]+)?(/{_PART})*$"},
    "repository": {"type": "string", "pattern": f"^{_PART}(/{_PART})*$"},
    "tag": {"type": "string", "pattern": "^$|^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$"},
    "digest": {"type": "string", "pattern": "^$|^sha256:[a-f0-9]{64}$"},
    "interval": {"type": "string", "pattern": "^[0-9]+(ms|s|m|h)$"},
}  # fmt: skip
# more than 0, for text: the templates divide by such numbers
POSITIVE = r"^[0-9]*[1-9][0-9]*(\.[0-9]+)?$|^[0-9]+\.[0-9]*[1-9][0-9]*$"
NUMERIC = {"integer": "^-?[0-9]+$", "number": r"^-?[0-9]+(\.[0-9]+)?$"}
BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")


def document(entries: list[Entry], settings: Schema, renamed: dict[str, str]) -> Schema:
    """The whole schema; `settings` is the service's, `renamed` the old names of settings."""
    schema: Schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Values of the chart glm5",
    }
    schema |= _object(entries, settings)
    # helm hands `global` to every chart that is part of another
    schema["properties"]["global"] = {"type": "object", "description": "Values of a parent chart. Not used."}
    for old, new in renamed.items():
        _add_old_name(schema, old, new, setting(settings, new))
    return schema


def _object(entries: list[Entry], settings: Schema) -> Schema:
    """An object that knows these keys and no others; helm drops a default that is set to null, so most are required."""
    return {
        "type": "object",
        "additionalProperties": False,
        "required": [entry.name for entry in entries if not entry.is_nullable],
        "properties": {entry.name: _property(entry, settings) for entry in entries},
    }


def _property(entry: Entry, settings: Schema) -> Schema:
    about = {"description": entry.text}
    if "settings" in entry.extra:
        return about | service_settings(settings)
    if entry.children:
        return about | _object(entry.children, settings)
    found: Schema = about | typed(entry)
    if entry.is_nullable and found.get("type") != "null":
        kinds = found["type"] if isinstance(found["type"], list) else [found["type"]]
        found["type"] = [*kinds, *([] if "null" in kinds else ["null"])]
    return found


def typed(entry: Entry) -> Schema:
    """Type from the default, the rest from the @schema lines; what `is` stands for comes from KINDS."""
    extra = dict(entry.extra)
    kind = _TYPES.get(type(entry.default))
    # a whole number is a good default for a decimal value
    if kind == "integer" and "exclusiveMinimum" in extra:
        kind = "number"
    found = {"type": kind} | KINDS.get(extra.pop("is", ""), {}) | extra
    if isinstance(items := found.get("items"), dict):
        found["items"] = KINDS[items["is"]] | {"minLength": 1} if "is" in items else items
    return accept_text(found)


def accept_text(schema: Schema) -> Schema:
    """The same number, also as text. JSON Schema applies ranges to numbers only, and patterns to text only."""
    kinds = schema.get("type")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    numeric = next((kind for kind in kinds if kind in NUMERIC), None)
    if numeric is None:
        return schema
    pattern = POSITIVE if schema.get("exclusiveMinimum") == 0 else NUMERIC[numeric]
    found = schema | {"type": [*kinds, "string"], "pattern": pattern}
    if "enum" in schema:
        found["enum"] = [*schema["enum"], *(f"{value:g}" for value in schema["enum"])]
    return found


def service_settings(schema: Schema) -> Schema:
    """The service's schema as the chart takes it: null for its own default, numbers also as text."""
    if "properties" not in schema:
        return accept_text(
            _or_null({key: item for key, item in schema.items() if key not in ("default", "flag", "aliases")})
        )
    properties = {name: service_settings(item) for name, item in schema["properties"].items()}
    about = {"description": schema["description"]} if "description" in schema else {}
    return {**about, "type": "object", "additionalProperties": False, "properties": properties}


def _or_null(schema: Schema) -> Schema:
    if "anyOf" in schema:
        has_null = any(item.get("type") == "null" for item in schema["anyOf"])
        options = [accept_text(item) for item in schema["anyOf"]]
        return schema | {"anyOf": [*options, *([] if has_null else [{"type": "null"}])]}
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    enum = {"enum": [*schema["enum"], None]} if "enum" in schema else {}
    return schema | {"type": [*kinds, "null"]} | enum


def setting(settings: Schema, path: str) -> Schema:
    """The schema of one setting."""
    for part in path.split("."):
        settings = settings["properties"][part]
    return settings


def _add_old_name(schema: Schema, old: str, new: str, target: Schema) -> None:
    """Accept an old name, with the type of the setting that replaces it, or empty."""
    *parents, name = old.split(".")
    for part in parents:
        schema = schema["properties"].setdefault(
            part, {"type": "object", "additionalProperties": False, "properties": {}}
        )
    accepted = {key: item for key, item in service_settings(target).items() if key != "description"}
    schema["properties"][name] = {
        "description": f"Old name of settings.{new}. Works in this release only.",
        "anyOf": [accepted, {"const": ""}],
    }
