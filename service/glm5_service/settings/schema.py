"""The tree of settings as a flat list of leaves: dotted path, environment name, field. Reads nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from glm5_service.settings.tree import Settings

ENV_PREFIX = "GLM5_"


@dataclass(frozen=True)
class Leaf:
    """One setting."""

    path: str
    field: FieldInfo

    @property
    def env(self) -> str:
        """Name of its environment variable."""
        return ENV_PREFIX + self.path.replace(".", "__").upper()

    @property
    def flag(self) -> str | None:
        """Flag of `vllm serve` that it becomes, if it is one."""
        extra = self.field.json_schema_extra
        found = extra.get("flag") if isinstance(extra, dict) else None
        return str(found) if found else None


def _walk(model: type[BaseModel], prefix: str) -> Iterator[Leaf]:
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _walk(kind, f"{prefix}{name}.")
        else:
            yield Leaf(prefix + name, field)


@cache
def leaves() -> dict[str, Leaf]:
    """Every setting by dotted path, in the order of declaration."""
    return {leaf.path: leaf for leaf in _walk(Settings, "")}


@cache
def sections() -> frozenset[str]:
    """Every dotted path that is a section."""
    return frozenset(path.rsplit(".", n)[0] for path in leaves() for n in range(1, path.count(".") + 1))
