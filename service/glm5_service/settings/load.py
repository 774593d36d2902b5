"""Merges the layers of settings (flags over environment over file over defaults) and keeps their origins."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from glm5_service.errors import SettingsError
from glm5_service.redact import MASK
from glm5_service.settings.schema import leaves
from glm5_service.settings.sources import Given, Layer, from_environment, from_file, from_flags
from glm5_service.settings.tree import Settings
from glm5_service.variables import CONFIG

DEFAULT = "default"


@dataclass(frozen=True)
class Loaded:
    """Settings, and for every dotted path where its value came from."""

    settings: Settings
    origins: Mapping[str, str]


def load(
    flags: Mapping[str, Given] | None = None,
    *,
    config: Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> Loaded:
    """Settings from all layers; raises SettingsError with the origin of the first wrong value."""
    environ = os.environ if environ is None else environ
    if config is None and environ.get(CONFIG):
        config = Path(environ[CONFIG])
    layers = [from_file(config) if config else {}, from_environment(environ), from_flags(flags or {})]
    merged: Layer = reduce(lambda low, high: low | high, layers)
    tree: dict[str, Any] = {}
    for path, given in merged.items():
        *parents, name = path.split(".")
        reduce(lambda node, part: node.setdefault(part, {}), parents, tree)[name] = given.value
    try:
        settings = Settings.model_validate(tree)
    except ValidationError as error:
        raise _explain(error, merged) from error
    return Loaded(settings, {path: merged[path].origin if path in merged else DEFAULT for path in leaves()})


def _explain(error: ValidationError, merged: Layer) -> SettingsError:
    """The first wrong value as one sentence: setting, origin, value, what was expected."""
    first = error.errors(include_url=False)[0]
    parts = [str(part) for part in first["loc"]]
    path = next((".".join(parts[:n]) for n in range(len(parts), 0, -1) if ".".join(parts[:n]) in merged), "")
    if not path:  # a rule over several settings of one section
        return SettingsError(f"settings of {'.'.join(parts) or 'the tree'}", expected=first["msg"])
    given = merged[path]
    value = repr(given.value)
    if is_secret(path):
        value = MASK if given.value else "empty"
    more = f"{error.error_count() - 1} more settings are wrong." if error.error_count() > 1 else ""
    expected = first["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    return SettingsError(f"setting {path} ({given.origin})", value, expected=expected, remedy=more)


def is_secret(path: str) -> bool:
    """Whether the value of a setting must not be shown."""
    return "Secret" in str(leaves()[path].field.annotation)
