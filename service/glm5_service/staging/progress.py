"""Progress of a run: a bar or a line every 10 s for people, staging.json for machines.

Counts and decides nothing. Any thread may call it.
"""

from __future__ import annotations

import shutil
import threading
from collections import deque
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from glm5_service.contracts.staging import StagingPhase, StagingState
from glm5_service.foreign import clean
from glm5_service.redact import redact
from glm5_service.rundir import RunDir, write
from glm5_service.staging.clock import Clock
from glm5_service.staging.reasons import REMEDIES, StagingError

LINE_SECONDS = 10.0
BAR_SECONDS = 0.5
FILE_SECONDS = 2.0
RATE_WINDOW_SECONDS = 30.0
LONGEST_LINE = 1000


class Progress:
    """The state of one run."""

    def __init__(self, out: TextIO, run_dir: Path | None, clock: Clock) -> None:
        self._out, self._clock = out, clock
        self._path = RunDir(run_dir).staging if run_dir else None
        self._is_unwritable = False
        self._lock = threading.Lock()
        self._bar = out.isatty()
        self._begun = clock.monotonic()
        self._started_at = datetime.now(UTC)
        self._window: deque[tuple[float, int]] = deque()
        self._next_shown = self._next_written = 0.0
        self.phase: StagingPhase = "starting"
        self._phase_begun = self._begun
        self._phases: dict[str, float] = {}
        self.source = self.revision = ""
        self.total_bytes = 0
        self.present_bytes = 0
        self.fetched_bytes = 0
        self.hashed_bytes = 0
        self.retries = 0
        self.restarts = 0
        self.files: dict[str, str] = {}

    def enter(self, phase: StagingPhase) -> None:
        """Begin a phase; going on with the same one is no new phase."""
        now = self._clock.monotonic()
        self._phases[self.phase] = self._phases.get(self.phase, 0.0) + now - self._phase_begun
        self.phase, self._phase_begun = phase, now
        self.tick(force=True)

    def say(self, sentence: str) -> None:
        """A line for the log, above the bar if there is one."""
        with self._lock:
            start = "\r\033[K" if self._bar else ""
            print(f"{start}{clean(redact(sentence), LONGEST_LINE)}", file=self._out, flush=True)

    def fetched(self, count: int) -> None:
        """Bytes came from the source and are on the volume."""
        with self._lock:
            self.fetched_bytes += count
            self.present_bytes += count

    def lost(self, count: int) -> None:
        """Bytes that were present must be fetched again."""
        with self._lock:
            self.present_bytes -= count
            self.restarts += 1

    def hashed(self, count: int) -> None:
        """Bytes were read back from the volume and hashed."""
        with self._lock:
            self.hashed_bytes += count

    def rate(self) -> float:
        """Bytes per second from the source over the last half minute."""
        now = self._clock.monotonic()
        self._window.append((now, self.fetched_bytes))
        while len(self._window) > 2 and now - self._window[0][0] > RATE_WINDOW_SECONDS:
            self._window.popleft()
        then, before = self._window[0]
        elapsed = now - then
        return max(0.0, (self.fetched_bytes - before) / elapsed) if elapsed > 0 else 0.0

    def tick(self, *, force: bool = False) -> None:
        """Show and write what is due; call often."""
        now = self._clock.monotonic()
        if force or now >= self._next_written:
            self._next_written = now + FILE_SECONDS
            self._write(None)
        if force or now >= self._next_shown:
            self._next_shown = now + (BAR_SECONDS if self._bar else LINE_SECONDS)
            self._show()

    def done(self) -> None:
        self.enter("done")
        if self._bar:
            print(file=self._out, flush=True)

    def failed(self, error: StagingError) -> None:
        """The last word in staging.json."""
        self.enter("failed")
        self._write(error)

    def _show(self) -> None:
        rate = self.rate()
        share = self.present_bytes / self.total_bytes if self.total_bytes else 0.0
        facts = f"{size_text(self.present_bytes)} of {size_text(self.total_bytes)}"
        speed = f"{size_text(rate)}/s" if rate else "-"
        eta = duration_text((self.total_bytes - self.present_bytes) / rate) if rate else "-"
        with self._lock:
            if self._bar:
                tail = f" {share:4.0%} {facts} {speed} eta {eta} {self.phase}"
                width = max(10, min(40, shutil.get_terminal_size().columns - len(tail) - 3))
                print(
                    f"\r\033[K[{'#' * int(width * share):<{width}}]{tail}", end="", file=self._out, flush=True
                )
            else:
                line = f"phase={self.phase} bytes={self.present_bytes} total={self.total_bytes} ({share:.1%}, {facts})"
                print(f"{line} rate={speed} eta={eta}", file=self._out, flush=True)

    def _write(self, error: StagingError | None) -> None:
        if self._path is None:
            return
        try:
            write(self._path, self._state(error))
            self._is_unwritable = False
        except OSError as fault:
            # staging must not fail for its own report; say it once and try again at the next tick
            if not self._is_unwritable:
                self.say(f"cannot write staging.json: {fault.strerror}")
            self._is_unwritable = True

    def _state(self, error: StagingError | None) -> StagingState:
        rate = self.rate()
        return StagingState(
            schema_version=1,
            phase=self.phase,
            reason=str(error.reason) if error else None,
            message=str(error) if error else None,
            remedy=REMEDIES[error.reason].text if error else None,
            source=self.source,
            revision=self.revision,
            total_bytes=self.total_bytes,
            present_bytes=self.present_bytes,
            fetched_bytes=self.fetched_bytes,
            hashed_bytes=self.hashed_bytes,
            bytes_per_second=round(rate),
            eta_seconds=round((self.total_bytes - self.present_bytes) / rate) if rate else None,
            retries=self.retries,
            restarts=self.restarts,
            files=dict(self.files),
            phase_seconds={name: round(seconds, 3) for name, seconds in self._phases.items()},
            elapsed_seconds=round(self._clock.monotonic() - self._begun, 1),
            started_at=self._started_at,
            updated_at=datetime.now(UTC),
        )


def size_text(count: float) -> str:
    """Bytes in decimal units, as disks and networks are sold."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.2f} GB"


def duration_text(seconds: float) -> str:
    """Seconds as a person says them."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
