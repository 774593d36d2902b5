"""`glm5 gguf`: what a GGUF file holds. The reading is done by the plugin, in a process of its own."""

from __future__ import annotations

from pathlib import Path

import click


@click.group("gguf")
def command() -> None:
    """Inspect a GGUF file."""


@command.command("inspect")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
def inspect(file: Path, as_json: bool) -> int:
    """Show what FILE holds, what the loader takes and what it refuses.

    FILE is a GGUF file, any file of a split set, or a folder that holds one set.
    """
    from glm5_service.model.inspection import show

    return show(file, as_json=as_json)
