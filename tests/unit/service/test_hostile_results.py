"""What was measured of hostile clients, and the page that tells it."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

from glm5_service.api.policy import BodyLimits, ConnectionLimits, SchemaLimits
from tests.support.hostile import INPUTS
from tests.support.hostile_page import BODY, CONNECTION, PAGE, SCHEMA, recorded
from tests.support.results import RESULTS

CONDITIONS = {"measured", "hardware", "load_average", "versions", "command"}


def _results(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    assert set(found) >= CONDITIONS
    return found


def test_every_hostile_client_was_measured() -> None:
    """Each has a row with its cost; none took a probe down, or made the engine start again."""
    found = _results("hostile-clients")
    assert [row["input"] for row in found["rows"]] == list(INPUTS)
    assert found["restarts"] == 0
    for row in found["rows"]:
        assert row["statuses"] == {"readyz": [200], "livez": [200], "health": [200]}, row
        assert row["memory_mib"] < 200, row


def test_the_soak_lost_nothing() -> None:
    """Honest streams beside hostile clients: none lost, no restart, every probe 200, memory within 1.5 times."""
    found = _results("soak-hostile")
    assert (found["honest"]["lost"], found["restarts"]) == ([], 0)
    assert found["honest"]["streams"] == 32
    assert found["api_server"]["ratio"] <= 1.5
    assert set(found["probes"]) == {"readyz 200", "livez 200", "health 200"}


def test_the_page_is_generated() -> None:
    """`python -m tests.support.hostile_page` writes it, and every limit of the policy is on it."""
    assert PAGE.read_text() == recorded()
    for limits, names in ((BodyLimits, BODY), (SchemaLimits, SCHEMA), (ConnectionLimits, CONNECTION)):
        assert {field.name for field in fields(limits)} == set(names)
