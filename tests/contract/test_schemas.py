"""The JSON Schemas in the repository are those of the models, and say what the models accept."""

from __future__ import annotations

import json
from typing import Any

import pytest
from jsonschema import Draft7Validator
from pydantic import ValidationError

from glm5_service.contracts import generate
from glm5_service.settings import Settings
from glm5_service.settings.schema import leaves

SETTINGS = Draft7Validator(json.loads((generate.FOLDER / "settings.json").read_text()))


def test_schemas_are_current() -> None:
    """`make contracts` would change nothing: every model has its schema, and no schema is left over."""
    found = {path.stem: path.read_text() for path in generate.FOLDER.glob("*.json")}
    assert found == {name: generate.text(name) for name in generate.SCHEMAS}


@pytest.mark.parametrize("name", generate.SCHEMAS)
def test_a_schema_can_be_embedded(name: str) -> None:
    """A schema is draft 7 without references, so that values.schema.json can take it in at any place."""
    document = json.loads(generate.text(name))
    Draft7Validator.check_schema(document)
    assert "$ref" not in json.dumps(document)


def test_every_setting_is_in_the_schema() -> None:
    """A setting that pydantic knows is one that the chart may be given."""
    assert set(_names(SETTINGS.schema, "")) == set(leaves())


@pytest.mark.parametrize(
    ("tree", "accepted"),
    [
        ({}, True),
        ({"engine": {"port": 8001, "max_model_len": None}, "log": {"level": "debug"}}, True),
        ({"engine": {"extra_args": "--a b"}, "api": {"extra_routes": ["GET:/v1/x"]}}, True),
        ({"health": {"stall_seconds": 1.5}, "staging": {"hub": {"token": {"file": "/etc/token"}}}}, True),
        ({"engine": {"prot": 8001}}, False),
        ({"engin": {}}, False),
        ({"engine": {"port": 70000}}, False),
        ({"health": {"stall_seconds": 0}}, False),
        ({"log": {"level": "loud"}}, False),
        ({"staging": {"hub": {"token": {"fil": "/etc/token"}}}}, False),
        ({"engine": []}, False),
    ],
    ids=str,
)
def test_schema_and_model_accept_the_same(tree: dict[str, Any], accepted: bool) -> None:
    """What helm accepts at render time is what the service accepts at its start, and the other way round."""
    assert SETTINGS.is_valid(tree) == accepted
    try:
        Settings.model_validate(tree)
    except ValidationError:
        assert not accepted
    else:
        assert accepted


def _names(node: dict[str, Any], prefix: str) -> list[str]:
    """Dotted paths of the leaves of a schema."""
    return [
        name
        for key, value in node["properties"].items()
        for name in (_names(value, f"{prefix}{key}.") if "properties" in value else [prefix + key])
    ]
