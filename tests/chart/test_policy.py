"""checkov over every rendered example and over docker/; what it finds is fixed or excused in policy.yaml."""

from __future__ import annotations

import json
import subprocess
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.chart import EXAMPLES, ROOT, render

pytestmark = pytest.mark.chart

CHECKOV = ROOT / ".venv-checkov" / "bin" / "checkov"
EXCUSES = yaml.safe_load(Path(__file__).with_name("policy.yaml").read_text())


def scan(framework: str, folder: Path) -> list[tuple[str, str]]:
    """(check, resource) of every failure."""
    argv = [str(CHECKOV), "--framework", framework, "-d", str(folder), "-o", "json", "--quiet"]
    output = subprocess.run(argv, capture_output=True, text=True, check=False)
    found: Any = json.loads(output.stdout)
    return [(item["check_id"], item["resource"]) for item in found["results"]["failed_checks"]]


def excused(check: str, resource: str) -> int | None:
    """Which excuse covers a finding."""
    for number, excuse in enumerate(EXCUSES):
        if check == excuse["check"] and fnmatch(resource, excuse["resource"]):
            return number
    return None


@pytest.mark.skipif(not CHECKOV.exists(), reason="`make chart` installs checkov")
def test_every_finding_is_excused_and_every_excuse_is_needed(tmp_path: Path) -> None:
    """checkov finds nothing beyond the list, and each entry of the list still covers something."""
    for name in EXAMPLES:
        (tmp_path / f"{name}.yaml").write_text(render(name).stdout)
    found = [*scan("kubernetes", tmp_path), *scan("dockerfile", ROOT / "docker")]

    assert {finding for finding in found if excused(*finding) is None} == set()
    assert {excused(*finding) for finding in found} == set(range(len(EXCUSES)))
