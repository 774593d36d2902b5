"""compiles/PID.json: a kernel compilation under way. The file is there while that process compiles.

Writer: the plugin's `compile_marks`. Reader: `watch.observe`.
"""

from __future__ import annotations

from glm5_service.contracts.base import Record


class CompileMark(Record):
    """The oldest compilation that runs in one process."""

    kernel: str
    since: float
    """When it began, in seconds since 1970."""
