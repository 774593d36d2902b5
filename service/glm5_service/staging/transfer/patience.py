"""Time spent on a source: pauses between attempts, when to give up, and the rate limit.

Not tenacity: one wait for all workers, attempts that count only without a new byte, and a rate limit that ends on SIGTERM
would still be ours. One line of backoff would be left to it.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import TypeVar

from glm5_service.settings.staging import StagingSettings
from glm5_service.staging.clock import Clock
from glm5_service.staging.reasons import StagingError, Transient

T = TypeVar("T")


class Patience:
    """Shared by all workers of a run: a server that says "wait" is left alone by all of them."""

    def __init__(self, settings: StagingSettings, clock: Clock, stop: threading.Event) -> None:
        self._settings, self._clock, self._stop = settings, clock, stop
        self._quiet_until = 0.0
        self.retried = 0

    def wait_turn(self) -> None:
        """Wait until the source may be asked again; raises Stopped."""
        while (left := self._quiet_until - self._clock.monotonic()) > 0:
            self._clock.pause(self._stop, left)

    def failed(self, fault: Transient, attempt: int, doing: str) -> None:
        """Pause after failure number `attempt` in a row; raises StagingError if that was the last."""
        if attempt > self._settings.retries:
            raise StagingError(
                fault.reason, f"{doing}, {attempt} attempts without progress, the last", fault.sentence
            ) from fault
        self.retried += 1
        settings = self._settings
        pause = min(settings.backoff_seconds * 2 ** (attempt - 1), settings.backoff_max_seconds)
        # spread the workers, or all of them knock again at the same moment
        pause *= random.uniform(0.5, 1.0)
        if fault.retry_after is not None:
            asked = min(fault.retry_after, settings.retry_after_max_seconds)
            self._quiet_until = max(self._quiet_until, self._clock.monotonic() + asked)
            pause = 0.0
        self._clock.pause(self._stop, pause)
        self.wait_turn()

    def persist(self, doing: str, ask: Callable[[], T]) -> T:
        """The answer of `ask`, asked again as long as that makes sense."""
        attempt = 0
        while True:
            self.wait_turn()
            try:
                return ask()
            except Transient as fault:
                attempt += 1
                self.failed(fault, attempt, doing)


class RateLimit:
    """A token bucket over all connections; `bytes_per_second` 0 lets everything pass."""

    def __init__(self, bytes_per_second: int, clock: Clock, stop: threading.Event) -> None:
        self._rate, self._clock, self._stop = bytes_per_second, clock, stop
        self._lock = threading.Lock()
        self._paid_until = 0.0

    def spend(self, count: int) -> float:
        """Account for `count` bytes and wait until they fit; returns the seconds waited."""
        if not self._rate:
            return 0.0
        with self._lock:
            now = self._clock.monotonic()
            # a tenth of a second of credit lets bursts pass without raising the average
            self._paid_until = max(self._paid_until, now - 0.1) + count / self._rate
            wait = self._paid_until - now
        if wait > 0:
            self._clock.pause(self._stop, wait)
            return wait
        return 0.0
