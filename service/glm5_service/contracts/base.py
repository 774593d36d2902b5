"""The base of all contracts."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """A file, or a part of one. Readers ignore keys that a newer writer adds."""

    model_config = ConfigDict(
        frozen=True,
        extra="ignore",
        use_attribute_docstrings=True,
        validate_by_name=True,
        validate_by_alias=True,
    )
