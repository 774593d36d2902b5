"""Every setting with value and origin, for `glm5 config`; secrets are masked. Renders, reads nothing."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel

from glm5_service.redact import redact
from glm5_service.settings.load import Loaded
from glm5_service.settings.schema import leaves


class Shown(BaseModel):
    """One setting as it is shown."""

    name: str
    value: Any
    origin: str
    env: str
    about: str


def shown(loaded: Loaded) -> list[Shown]:
    """All settings in the order of declaration."""
    tree = loaded.settings.model_dump(mode="json")
    rows = []
    for path, leaf in leaves().items():
        value: Any = tree
        for part in path.split("."):
            value = value[part]
        about = " ".join((leaf.field.description or "").split())
        value = json.loads(redact(json.dumps(value)))
        rows.append(Shown(name=path, value=value, origin=loaded.origins[path], env=leaf.env, about=about))
    return rows


def as_text(rows: list[Shown]) -> str:
    """A table of name, value and origin."""
    cells = [(row.name, "-" if row.value in (None, []) else str(row.value), row.origin) for row in rows]
    widths = [max(len(cell[column]) for cell in cells) for column in range(2)]
    return "\n".join(f"{name:<{widths[0]}}  {value:<{widths[1]}}  {origin}" for name, value, origin in cells)
