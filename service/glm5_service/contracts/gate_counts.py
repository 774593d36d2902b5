"""The gate's answer at /_glm5/requests and /_glm5/drain: how many requests of users there are.

Writer: `api.gate`, in vLLM's API server. Reader: `watch.vllm_api`, for the supervisor.
"""

from __future__ import annotations

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass


@dataclass(frozen=True, config=ConfigDict(extra="ignore"))
class GateCounts:
    """User requests as the gate counts them; `running` ones are there whole, `uploading` ones are not yet."""

    running: int
    finished: int
    sent: int
    """Parts of successful answers that were sent."""
    refused: dict[str, int]
    """By reason."""
    uploading: int
    draining: bool
    held_bytes: int = 0
    """Bytes of request bodies that are held now."""

    @property
    def held(self) -> int:
        """All that have not ended."""
        return self.running + self.uploading
