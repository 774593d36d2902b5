"""Two windows of one worker: while one fills from the network, a thread writes the other to the volume."""

from __future__ import annotations

import queue
import threading

from glm5_service.staging.blocks import Window
from glm5_service.staging.partial import Partial


class Landing:
    """Takes a worker's bytes; used by that worker only."""

    def __init__(self, window_bytes: int, name: str) -> None:
        self._free: queue.SimpleQueue[Window] = queue.SimpleQueue()
        self._full: queue.SimpleQueue[Window | None] = queue.SimpleQueue()
        self._free.put(Window(window_bytes))
        self._window = Window(window_bytes)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._write, name=name, daemon=True)
        self._thread.start()

    def aim(self, partial: Partial, epoch: int, position: int) -> None:
        """What comes next are the bytes of `partial` from `position` on; the landing was drained before."""
        self._partial, self._epoch = partial, epoch
        self._window.restart(position)

    @property
    def room(self) -> memoryview:
        """Where the next bytes go; empty when it is time to turn."""
        return self._window.room

    def filled(self, count: int) -> None:
        """`count` bytes were put at the start of `room`."""
        self._window.filled(count)

    def turn(self) -> None:
        """Have the window written and go on with the other; raises what writing raised."""
        following = self._window.position + self._window.count
        self._full.put(self._window)
        self._window = self._free.get()
        self._window.restart(following)
        if self._error is not None:
            raise self._error

    def drain(self) -> None:
        """Return when every byte is written and journalled; raises what writing raised."""
        self.turn()
        # the other window comes back once it is written
        self._free.put(self._free.get())
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        self._full.put(None)

    def _write(self) -> None:
        while (window := self._full.get()) is not None:
            try:
                if self._error is None:
                    self._partial.write(window, self._epoch)
            except BaseException as error:
                self._error = error
            finally:
                self._free.put(window)
