"""What all sections of the settings share. Declares types, reads nothing."""

from __future__ import annotations

import shlex
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


def _words(value: object) -> object:
    """A list given as one string is split the way a shell would."""
    return shlex.split(value) if isinstance(value, str) else value


Words = Annotated[list[str], BeforeValidator(_words, json_schema_input_type=list[str] | str)]
Port = Annotated[int, Field(ge=1, le=65535)]
Seconds = Annotated[float, Field(gt=0)]


class Section(BaseModel):
    """Base of all sections: unknown keys are errors, values do not change after loading."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, hide_input_in_errors=True
    )
