"""Takes the listed families out of vLLM's metrics page, text unchanged. Pure."""

from __future__ import annotations

from collections.abc import Sequence

_SUFFIXES = ("", "_total", "_bucket", "_sum", "_count")


def filter_page(page: str, families: Sequence[str]) -> str:
    """The lines of `page` that belong to `families`, help and type included; creation times are left out."""
    wanted = {name + suffix for name in families for suffix in _SUFFIXES}
    kept = [line for line in page.splitlines() if _series(line) in wanted]
    return "".join(f"{line}\n" for line in kept)


def _series(line: str) -> str:
    if line.startswith("# "):
        parts = line.split(" ", 3)
        return parts[2] if len(parts) > 2 else ""
    return line.split("{", 1)[0].split(" ", 1)[0]
