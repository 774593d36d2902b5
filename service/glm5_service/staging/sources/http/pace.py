"""Detects a connection that is alive but too slow. Time spent in our own rate limit does not count."""

from __future__ import annotations

from glm5_service.settings.staging import StagingSettings
from glm5_service.staging.clock import Clock
from glm5_service.staging.reasons import Reason, Transient


class Pace:
    """Watches one request."""

    def __init__(self, settings: StagingSettings, clock: Clock) -> None:
        self._clock, self._window = clock, settings.stall_seconds
        self._least = settings.stall_bytes_per_second * settings.stall_seconds
        self._since, self._count = clock.monotonic(), 0

    def check(self, count: int, waited: float) -> None:
        """`count` bytes came; raises Transient(STALLED) when a whole window brought too few."""
        self._count += count
        self._since += waited
        now = self._clock.monotonic()
        if now - self._since < self._window:
            return
        if self._count < self._least:
            raise Transient(Reason.STALLED, f"{self._count} bytes in {now - self._since:.0f} s")
        self._since, self._count = now, 0
