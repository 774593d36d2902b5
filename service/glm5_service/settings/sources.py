"""Reads the layers of settings (file, environment, flags) into flat `path -> Given` maps; `load` merges them.

The only module that reads the settings file and GLM5_* variables. Every layer refuses names it does not know.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

from glm5_service.errors import SettingsError
from glm5_service.redact import MASK
from glm5_service.settings.schema import ENV_PREFIX, leaves, sections
from glm5_service.variables import CONFIG, TRACEBACK

OWN_VARIABLES = frozenset({CONFIG, TRACEBACK})
# Kubernetes adds these to every pod of a namespace that has a Service whose name begins with "glm5"
_SERVICE_LINK = re.compile(
    r"_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_\d+_(TCP|UDP)(_(PROTO|PORT|ADDR))?)?)$"
)


@dataclass(frozen=True)
class Given:
    """A value as it was given, and where."""

    value: object
    origin: str


Layer = dict[str, Given]


def nearest(name: str, known: Iterable[str]) -> str:
    """`Did you mean X?`, or an empty string when nothing is near."""
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"Did you mean {found[0]}?" if found else ""


def from_text(text: str) -> object:
    """A value given as text: JSON lists and maps are parsed, all else stays text for pydantic to convert."""
    if text[:1] in "[{" and text:
        try:
            return json.loads(text)
        except ValueError:
            return text
    return text


def from_flags(flags: Mapping[str, Given]) -> Layer:
    """Flags by dotted path; text values become what they say."""
    layer: Layer = {}
    for path, given in flags.items():
        if path not in leaves():
            raise SettingsError(
                f"unknown setting ({given.origin})",
                path,
                expected="a name that `glm5 config` lists",
                remedy=nearest(path, leaves()) or "See `glm5 config`.",
            )
        value = from_text(given.value) if isinstance(given.value, str) else given.value
        layer[path] = Given(value, given.origin)
    return layer


def from_environment(environ: Mapping[str, str]) -> Layer:
    """GLM5_* variables."""
    by_name = {leaf.env: path for path, leaf in leaves().items()}
    layer: Layer = {}
    for name, text in environ.items():
        if not name.startswith(ENV_PREFIX) or name in OWN_VARIABLES:
            continue
        if path := by_name.get(name):
            layer[path] = Given(from_text(text), f"env {name}")
        elif "__" in name or not _SERVICE_LINK.search(name):
            raise SettingsError(
                "unknown environment variable",
                name,
                expected="GLM5_ and the name of a setting in capitals, with __ between its parts",
                remedy=nearest(name, by_name) or "See `glm5 config`.",
            )
    return layer


def from_file(path: Path) -> Layer:
    """A YAML file whose maps mirror the sections."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            "cannot read the settings file", path, expected="a readable YAML file", remedy=f"{error}."
        ) from error
    try:
        document = yaml.load(text, Loader=_StrictLoader)
    except yaml.YAMLError as error:
        raise SettingsError(
            "settings file is not YAML", path, expected="a map of sections", remedy=_yaml_problem(error)
        ) from None
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise SettingsError(
            "settings file", path, expected=f"a map of sections, not a {type(document).__name__}"
        )
    layer: Layer = {}
    _flatten(document, "", path, layer)
    return layer


def _yaml_problem(error: yaml.YAMLError) -> str:
    """Where the fault is and of what kind; the line itself may hold a secret."""
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return "It holds a character that YAML does not allow."
    kind = re.sub(r"'[^']*'|\"[^\"]*\"", "...", getattr(error, "problem", None) or "cannot be read")
    return f"Line {mark.line + 1}, column {mark.column + 1}: {kind}."


@cache
def names() -> frozenset[str]:
    """Every word that can be a key of the settings file."""
    return frozenset(part for path in leaves() for part in path.split("."))


class _StrictLoader(yaml.SafeLoader):
    """Refuses a key that appears twice, where YAML's own loader silently keeps the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[object, object]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen:
                name = key.value if key.value in names() else MASK
                raise yaml.constructor.ConstructorError(
                    None, None, f"key given twice: {name}", key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


def _flatten(node: dict[object, object], prefix: str, file: Path, layer: Layer) -> None:
    for key, value in node.items():
        path = f"{prefix}{key}"
        if path in leaves():
            layer[path] = Given(value, f"file {file}")
        elif path not in sections():
            raise SettingsError(
                f"unknown key in {file}",
                # a secret without its key stands where a key should
                f"{prefix}{MASK}" if f"{prefix}value" in leaves() else path,
                expected="a name that `glm5 config` lists",
                remedy=nearest(path, [*leaves(), *sections()]) or "See `glm5 config`.",
            )
        elif isinstance(value, dict):
            _flatten(value, f"{path}.", file, layer)
        elif value is not None:
            # its content may be a secret that stands a level too high
            raise SettingsError(
                f"section {path} in {file}", type(value).__name__, expected="a map of settings"
            )
