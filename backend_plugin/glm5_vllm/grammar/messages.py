"""What passes between the API server and its grammar helper: JSON, one line each way. Imports nothing heavy."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Literal, TypeVar

Kind = Literal["json", "json_object", "regex", "grammar", "lark", "structural_tag"]
Result = Literal["passed", "refused", "slow", "crashed"]
Line = TypeVar("Line", "Setup", "Job", "Outcome")


@dataclass(frozen=True)
class Setup:
    """First line to the helper: the vocabulary as xgrammar writes it, and what one compilation may cost."""

    tokenizer_info: str
    seconds: float
    memory_bytes: int
    any_whitespace: bool


@dataclass(frozen=True)
class Job:
    """A grammar to compile."""

    number: int
    kind: Kind
    spec: str


@dataclass(frozen=True)
class Outcome:
    """What came of a job; `parse_seconds` is what vLLM will spend on it in the API server."""

    number: int
    result: Result
    error: str = ""
    seconds: float = 0.0
    parse_seconds: float = 0.0


def write(line: Setup | Job | Outcome) -> bytes:
    """A message as its line."""
    return json.dumps(asdict(line)).encode() + b"\n"


def read(kind: type[Line], line: bytes) -> Line:
    """A message of its line."""
    return kind(**json.loads(line))
