"""Takes the listed families out of vLLM's metrics page, text unchanged. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from glm5_service.watch.metrics_page import lines_of

_SUFFIXES = ("", "_total", "_bucket", "_sum", "_count")


def filter_page(page: str, families: Sequence[str]) -> str:
    """The lines of `page` that belong to `families`, help and type included; creation times are left out."""
    wanted = {name + suffix for name in families for suffix in _SUFFIXES}
    return lines_of(page, wanted)
