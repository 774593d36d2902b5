"""Time for staging. It is monotonic, so a jump of the wall clock changes nothing. A wait ends when the run must stop."""

from __future__ import annotations

import threading
import time

from glm5_service.staging.reasons import Stopped


class Clock:
    """The real clock; tests put a quicker one in its place."""

    def monotonic(self) -> float:
        return time.monotonic()

    def pause(self, stop: threading.Event, seconds: float) -> None:
        """Wait; raises Stopped as soon as `stop` is set."""
        if stop.wait(seconds):
            raise Stopped
