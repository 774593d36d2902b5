"""The page of faults is what was measured."""

from __future__ import annotations

import json

from tests.support.results import FAULT_PAGE, RESULTS, fault_table


def test_page_is_what_was_recorded() -> None:
    """The page is generated from the recorded run and not edited by hand."""
    assert FAULT_PAGE.read_text() == fault_table(json.loads((RESULTS / "health-faults.json").read_text()))
