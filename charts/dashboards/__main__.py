"""Writes every board to charts/glm5/files/dashboards; `--check` compares instead."""

from __future__ import annotations

import sys
from pathlib import Path

from charts.dashboards import attention, engine, overview, startup
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

FOLDER = Path(__file__).parents[1] / "glm5" / "files" / "dashboards"


def boards() -> dict[str, Dashboard]:
    """Every board by the name of its file."""
    return {
        "overview": overview.build(), "attention": attention.build(),
        "startup": startup.build(), "engine": engine.build(),
    }  # fmt: skip


def text_of(board: Dashboard) -> str:
    """A board as its file holds it."""
    return JSONEncoder(sort_keys=True, indent=1).encode(board) + "\n"


def main(argv: list[str]) -> int:
    wanted = {FOLDER / f"{name}.json": text_of(board) for name, board in boards().items()}
    extra = set(FOLDER.glob("*.json")) - set(wanted)
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    if argv == ["--check"]:
        for path in sorted([*stale, *extra]):
            print(
                f"dashboards: {path.name} is not what the code makes; run `make dashboards`", file=sys.stderr
            )
        return 1 if stale or extra else 0
    for path in extra:
        path.unlink()
    for path in stale:
        path.write_text(wanted[path])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
