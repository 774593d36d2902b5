"""Writes arrived bytes to the volume: a few windows that workers borrow in turn, and a few threads that write them.

Few, however many connections there are: the windows stay in the processor's cache, and what waits for one waits in its
socket. Next: partial.Partial.write.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from glm5_service.staging.transfer.blocks import Window
from glm5_service.staging.transfer.partial import Partial

WINDOW_BYTES, WINDOWS, WRITERS = 2 << 20, 8, 4


@dataclass(frozen=True)
class Load:
    """A filled window and where it belongs; `written` is told when the window is on the volume."""

    window: Window
    partial: Partial
    epoch: int
    written: queue.SimpleQueue[None]


class Windows:
    """The windows of a run and the threads that write them; `fail` is told what writing raised."""

    def __init__(self, fail: Callable[[BaseException], None]) -> None:
        self._fail = fail
        self._free: queue.SimpleQueue[Window] = queue.SimpleQueue()
        self._full: queue.SimpleQueue[Load | None] = queue.SimpleQueue()
        for _ in range(WINDOWS):
            self._free.put(Window(WINDOW_BYTES))
        for number in range(WRITERS):
            threading.Thread(target=self._write, name=f"writer-{number}", daemon=True).start()

    def borrow(self) -> Window:
        return self._free.get()

    def give_back(self, window: Window) -> None:
        self._free.put(window)

    def write(self, load: Load) -> None:
        """Have the window written, and give it back."""
        self._full.put(load)

    def close(self) -> None:
        for _ in range(WRITERS):
            self._full.put(None)

    def _write(self) -> None:
        while (load := self._full.get()) is not None:
            try:
                load.partial.write(load.window, load.epoch)
            except BaseException as error:
                self._fail(error)
            finally:
                self._free.put(load.window)
                load.written.put(None)


class Landing:
    """The bytes that one request brings to `partial` from `position` on; used by one worker."""

    def __init__(self, windows: Windows, partial: Partial, epoch: int, position: int) -> None:
        self._windows, self._partial, self._epoch, self._position = windows, partial, epoch, position
        # what makes no whole block yet
        self._rest = b""
        self._under_way = 0
        self._written: queue.SimpleQueue[None] = queue.SimpleQueue()

    @contextmanager
    def window(self) -> Iterator[Window]:
        """Room for the next bytes. Others may wait for it, so wait for nothing meanwhile."""
        window = self._open()
        try:
            yield window
        except BaseException:
            self._windows.give_back(window)
            raise
        self._rest = window.cut()
        self._write(window)

    def drain(self) -> None:
        """Return when every byte is written and journalled, or `fail` was told why not."""
        if self._rest:
            window, self._rest = self._open(), b""
            self._write(window)
        while self._under_way:
            self._written.get()
            self._under_way -= 1

    def _open(self) -> Window:
        window = self._windows.borrow()
        window.restart(self._position)
        window.put(self._rest)
        return window

    def _write(self, window: Window) -> None:
        self._position = window.position + window.count
        if window.count:
            self._under_way += 1
            self._windows.write(Load(window, self._partial, self._epoch, self._written))
        else:
            self._windows.give_back(window)
