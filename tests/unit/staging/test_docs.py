"""Documents that are made from code are what the code would make."""

from __future__ import annotations

from tests.support.staging import faults_table


def test_fault_table_is_current() -> None:
    """The table is what the fault tests make; `make staging-docs` writes it."""
    assert faults_table.text() == faults_table.DOCUMENT.read_text()


def test_every_fault_has_its_own_row() -> None:
    """No two tests claim the same row."""
    names = [row.fault for row in faults_table.rows()]
    assert len(set(names)) == len(names) >= 40
