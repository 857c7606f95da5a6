"""Map values to positions on a plot axis and choose round tick values."""

import math
from dataclasses import dataclass
from typing import Final

LOG_SCALE_RATIO: Final = 30  # maximum divided by minimum above which a log scale is easier to read
TARGET_TICKS: Final = 5


def suits_log_scale(low: float, high: float) -> bool:
    """Return True for a range that is easier to read on a log scale."""
    return low > 0 and high > LOG_SCALE_RATIO * low


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One axis of a plot."""

    low: float
    high: float
    start: float
    """Position of ``low``."""
    end: float
    """Position of ``high``."""
    log: bool = False
    """True for a logarithmic axis; see `suits_log_scale`."""

    def position(self, value: float) -> float:
        """Return the position of a value."""
        low, high, scaled = (math.log10(v) if self.log else v for v in (self.low, self.high, value))
        fraction = (scaled - low) / (high - low) if high > low else 0.5
        return round(self.start + fraction * (self.end - self.start), 1)

    def ticks(self, *, integers: bool = False) -> list[float]:
        """Return round values in the range: steps of 1, 2 or 5 times a power of ten; powers of ten on a log axis.

        Args:
            integers: whether ticks must be whole numbers.
        """
        if self.high <= self.low:
            return [self.low]
        if self.log:
            first, last = math.ceil(math.log10(self.low)), math.floor(math.log10(self.high))
            return [10.0**k for k in range(first, last + 1, max(1, -(-(last - first) // TARGET_TICKS)))]
        min_step = (self.high - self.low) / TARGET_TICKS
        power = 10 ** math.floor(math.log10(min_step))
        step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= min_step)
        step = max(1.0, step) if integers else step
        return [step * k for k in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]
