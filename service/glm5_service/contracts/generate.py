"""Writes `schemas/*.json` from the models: `python -m glm5_service.contracts.generate` (`make contracts`).

The schemas are JSON Schema draft 7 without references, so that another document can embed them: the chart's
values.schema.json takes `settings.json` as its `settings`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel

from glm5_service.contracts.attestation import Attestation
from glm5_service.contracts.compile_mark import CompileMark
from glm5_service.contracts.engine import DrainOutcome, EngineState
from glm5_service.contracts.manifest import Manifest
from glm5_service.contracts.model_report import GgufFacts, UnreadableModel
from glm5_service.contracts.staging import StagingState
from glm5_service.settings import Settings

FOLDER: Final = Path(__file__).parent / "schemas"
DRAFT: Final = "http://json-schema.org/draft-07/schema#"
# what is written has every key; what a user gives has the keys that they want to change
Mode = Literal["serialization", "validation"]
SCHEMAS: Final[dict[str, tuple[type[BaseModel], Mode]]] = {
    "attestation": (Attestation, "serialization"),
    "compile-mark": (CompileMark, "serialization"),
    "drain": (DrainOutcome, "serialization"),
    "engine": (EngineState, "serialization"),
    "inspection": (GgufFacts, "serialization"),
    "manifest": (Manifest, "serialization"),
    "settings": (Settings, "validation"),
    "staging": (StagingState, "serialization"),
    "unreadable-model": (UnreadableModel, "serialization"),
}


def schema(model: type[BaseModel], mode: Mode) -> dict[str, Any]:
    """The model's JSON Schema: no references, no titles, and no key beyond the model's."""
    document = model.model_json_schema(mode=mode)
    shared = document.pop("$defs", {})
    inlined = _inline(document, shared)
    return {"$schema": DRAFT, **inlined}


def _inline(node: Any, shared: dict[str, Any]) -> Any:
    if isinstance(node, list):
        return [_inline(item, shared) for item in node]
    if not isinstance(node, dict):
        return node
    if reference := node.get("$ref"):
        target = shared[reference.rpartition("/")[2]]
        return _inline(target | {key: item for key, item in node.items() if key != "$ref"}, shared)
    properties = node.get("properties")
    # a title repeats the name, and a section's default repeats those of its fields
    dropped = {"title", "properties"} | ({"default"} if properties is not None else set())
    found = {key: _inline(item, shared) for key, item in node.items() if key not in dropped}
    if properties is not None:
        # by name, for here a key is a field's name and may be "title"
        found["properties"] = {name: _inline(item, shared) for name, item in properties.items()}
        found["additionalProperties"] = False
    return found


def text(name: str) -> str:
    """The content of `schemas/NAME.json`."""
    return json.dumps(schema(*SCHEMAS[name]), indent=1) + "\n"


def main() -> None:
    """Write every schema, and remove the files of models that are gone."""
    FOLDER.mkdir(exist_ok=True)
    for stale in {path.stem for path in FOLDER.glob("*.json")} - set(SCHEMAS):
        (FOLDER / f"{stale}.json").unlink()
    for name in SCHEMAS:
        (FOLDER / f"{name}.json").write_text(text(name), encoding="utf-8")


if __name__ == "__main__":
    main()
