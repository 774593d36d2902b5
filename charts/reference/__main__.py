"""Writes what follows from values.yaml: `python -m charts.reference`; `--check` compares instead."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import yaml
from charts.reference import engine_names
from charts.reference.comments import Entry, entries, flat
from charts.reference.page import page
from charts.reference.schema import document
from charts.reference.tables import tables

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "glm5"
# the service writes it; its packages are not imported here
SETTINGS = ROOT / "service" / "glm5_service" / "contracts" / "schemas" / "settings.json"
OWN = CHART / "files" / "values"


def undocumented(found: list[Entry]) -> list[str]:
    """Paths of values without a comment."""
    return [entry.path for entry in flat(found) if not entry.text]


def outputs(found: list[Entry]) -> dict[Path, str]:
    """Content of every generated file."""
    settings = engine_names.narrow(json.loads(SETTINGS.read_text()))
    owned, renamed = (
        yaml.safe_load((OWN / f"{name}.yaml").read_text()) for name in ("owned-settings", "renamed")
    )
    return {
        CHART / "values.schema.json": _json(document(found, settings, renamed)),
        OWN / "tables.json": _json(tables(found, settings)),
        ROOT / "docs" / "values.md": page(found, settings, owned),
    }


def _json(content: object) -> str:
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def main(argv: list[str]) -> int:
    if argv[:1] == ["names"]:
        engine_names.read(Path(argv[1]))
        return 0
    found = entries((CHART / "values.yaml").read_text())
    for name in undocumented(found):
        print(f"reference: {name} has no comment in values.yaml. Say above it what it does.", file=sys.stderr)
    wanted = outputs(found)
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    if argv == ["--check"]:
        for path in stale:
            print(
                f"reference: {path.name} is not what values.yaml says. Run `make chart-docs`.",
                file=sys.stderr,
            )
        return 1 if stale or undocumented(found) else 0
    for path in stale:
        path.write_text(wanted[path])
    return 1 if undocumented(found) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
