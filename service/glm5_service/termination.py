"""The termination message: what Kubernetes shows of a container that ended, as `glm5 cluster status` does."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

# the kubelet keeps so many
LIMIT_BYTES = 4096


def tell(path: Path, text: str) -> None:
    """Leave `text` as the message, only where the kubelet made the file; never raises."""
    with suppress(OSError):
        if path.exists():
            path.write_bytes(text.encode()[:LIMIT_BYTES])
