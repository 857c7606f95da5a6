"""A series of any length in bounded memory."""

from __future__ import annotations

from bisect import bisect_right
from typing import Final, Generic, TypeVar

Value = TypeVar("Value")
MAX_POINTS: Final = 2000  # of a series; more than a plot or a screen can show


class DownsampledSeries(Generic[Value]):
    """Once it is full every second point goes, and half as many come in.

    Args:
        max_points: points it keeps.
    """

    __slots__ = ("_most", "_passed", "_stride", "updates", "values")

    def __init__(self, max_points: int = MAX_POINTS) -> None:
        self._most = max_points
        self.updates: list[int] = []
        self.values: list[Value] = []
        """Those that were kept, in order, and the updates they belong to."""
        self._stride, self._passed = 1, 0

    @property
    def keeps_next(self) -> bool:
        """False if the next value will be passed over: it need not be worked out."""
        return self._passed + 1 >= self._stride

    def add(self, update: int, value: Value) -> bool:
        """Take in the next value, or pass over it; return whether it was kept."""
        self._passed += 1
        if self._passed < self._stride:
            return False
        self._passed = 0
        if len(self.values) == self._most:
            del self.updates[1::2], self.values[1::2]
            self._stride *= 2
        self.updates.append(update)
        self.values.append(value)
        return True

    def drop_after(self, update: int) -> None:
        """Drop what came after an update."""
        kept = bisect_right(self.updates, update)
        del self.updates[kept:], self.values[kept:]
