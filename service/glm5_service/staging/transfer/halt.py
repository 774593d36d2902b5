"""Ends the threads of one fetch together: the first error counts, and threads that wait for a server are woken."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from glm5_service.staging.reasons import Stopped
from glm5_service.staging.sources.base import Stream


class Halt:
    """Shared by the threads of one fetch. `asked` tells them to end, `over` to write nothing any more."""

    def __init__(self) -> None:
        self.asked, self.over = threading.Event(), threading.Event()
        self.error: BaseException | None = None
        self._streams: set[Stream] = set()
        self._guard = threading.Lock()

    def fail(self, error: BaseException) -> None:
        """Keep the first error and bring everything to a halt."""
        with self._guard:
            self.error = self.error or error
            self.asked.set()
            streams = list(self._streams)
        for stream in streams:
            stream.abort()

    def check(self) -> None:
        """Raise Stopped once a halt was asked for."""
        if self.asked.is_set():
            raise Stopped

    @contextmanager
    def waking(self, stream: Stream) -> Iterator[None]:
        """Within this block `fail` ends a read of `stream`."""
        with self._guard:
            self._streams.add(stream)
        try:
            yield
        finally:
            with self._guard:
                self._streams.discard(stream)

    def thread(self, name: str, body: Callable[[], None]) -> threading.Thread:
        """A thread, not started, whose error brings everything to a halt."""

        def guarded() -> None:
            try:
                body()
            except Stopped:
                pass
            except BaseException as error:
                self.fail(error)

        return threading.Thread(target=guarded, name=name, daemon=True)
