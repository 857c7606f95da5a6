"""Store a series of any length in bounded memory."""

from bisect import bisect_right
from typing import Final, Generic, TypeVar

Value = TypeVar("Value")
MAX_POINTS: Final = 2000  # points of a series; a plot has fewer pixels across
MAX_READ_LOSSES: Final = 16384  # losses that a program reads itself: of most runs, all of them


def max_points(series: str) -> int:
    """Return the number of points that are kept of a series of a watched program."""
    return MAX_READ_LOSSES if series == "loss_read" else MAX_POINTS


class DownsampledSeries(Generic[Value]):
    """A series that, when full, drops every second point and halves its sampling rate.

    Args:
        max_points: maximum number of points in memory.
    """

    __slots__ = ("_max_points", "_newest", "_skipped", "_stride", "updates", "values")

    def __init__(self, max_points: int = MAX_POINTS) -> None:
        self._max_points = max_points
        self.updates: list[int] = []
        self.values: list[Value] = []
        """The values, one for each entry of `updates`."""
        self._stride, self._skipped = 1, 0
        self._newest: tuple[int, Value] | None = None

    @property
    def stores_next(self) -> bool:
        """True if `add` will store the next value; otherwise the caller need not compute it."""
        return self._skipped + 1 >= self._stride

    def add(self, update: int, value: Value) -> bool:
        """Store or skip the next value; return True if it was stored."""
        self._newest = update, value
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

    def with_newest(self) -> tuple[list[int], list[Value]]:
        """Return the updates and values of all stored points and of the newest point, which may not be stored."""
        if self._newest is None or not self._skipped:
            return self.updates, self.values
        return [*self.updates, self._newest[0]], [*self.values, self._newest[1]]

    def drop_after(self, update: int) -> None:
        """Drop the points after ``update``."""
        end = bisect_right(self.updates, update)
        del self.updates[end:], self.values[end:]
        self._newest = None
