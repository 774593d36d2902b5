"""Which bytes of a file are here, as a sorted list of disjoint ranges."""

from __future__ import annotations

from bisect import bisect_left, bisect_right


class Coverage:
    """A set of half-open byte ranges. Not thread-safe; its owner locks."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def add(self, start: int, end: int) -> None:
        """Add [start, end), merged with every range it touches."""
        if start >= end:
            return
        first = bisect_left(self._ends, start)
        last = bisect_right(self._starts, end)
        if first < last:
            start = min(start, self._starts[first])
            end = max(end, self._ends[last - 1])
        self._starts[first:last] = [start]
        self._ends[first:last] = [end]

    @property
    def total(self) -> int:
        """Bytes covered."""
        return sum(self._ends) - sum(self._starts)

    @property
    def frontier(self) -> int:
        """End of the range that starts at byte 0; 0 if byte 0 is missing."""
        return self._ends[0] if self._starts and self._starts[0] == 0 else 0

    def ranges(self) -> list[tuple[int, int]]:
        return list(zip(self._starts, self._ends, strict=True))

    def missing(self, size: int) -> list[tuple[int, int]]:
        """The gaps of [0, size)."""
        edges = [0, *(edge for pair in self.ranges() for edge in pair), size]
        return [(start, end) for start, end in zip(edges[::2], edges[1::2], strict=True) if start < end]
