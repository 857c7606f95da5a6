"""Store a series of any length in bounded memory."""

from bisect import bisect_right
from typing import Final, Generic, TypeVar

Value = TypeVar("Value")
MAX_POINTS: Final = 2000  # points of a series; a plot has fewer pixels across


class DownsampledSeries(Generic[Value]):
    """A series that, when full, drops every second point and halves its sampling rate.

    Args:
        max_points: maximum number of points in memory.
    """

    __slots__ = ("_max_points", "_skipped", "_stride", "updates", "values")

    def __init__(self, max_points: int = MAX_POINTS) -> None:
        self._max_points = max_points
        self.updates: list[int] = []
        self.values: list[Value] = []
        """The values, one for each entry of `updates`."""
        self._stride, self._skipped = 1, 0

    @property
    def stores_next(self) -> bool:
        """True if `add` will store the next value; otherwise the caller need not compute it."""
        return self._skipped + 1 >= self._stride

    def add(self, update: int, value: Value) -> bool:
        """Store or skip the next value; return True if it was stored."""
        self._skipped += 1
        if self._skipped < self._stride:
            return False
        self._skipped = 0
        if len(self.values) == self._max_points:
            del self.updates[1::2], self.values[1::2]
            self._stride *= 2
        self.updates.append(update)
        self.values.append(value)
        return True

    def drop_after(self, update: int) -> None:
        """Drop the points after ``update``."""
        end = bisect_right(self.updates, update)
        del self.updates[end:], self.values[end:]
