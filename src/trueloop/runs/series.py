"""Prepare a long series for plotting: downsample it without losing extremes, and smooth it."""

import math
from collections.abc import Sequence
from itertools import pairwise

from trueloop.core.axis_ticks import suits_log_scale

MAX_POINTS = 800  # about the number of pixels of a plot's width


def envelope(xs: Sequence[float], ys: Sequence[float], points: int = MAX_POINTS) -> tuple[list[float], list[float]]:
    """Downsample a curve to at most ``points`` points, keeping the minimum and maximum of every interval.

    Args:
        xs: positions, ascending.
        ys: one value per position; non-finite values are dropped.
        points: largest number of points, an even number.

    Returns:
        The remaining positions and values, in order.

    Cost: linear; half a second for 10**6 points.
    """
    indices = [i for i, y in enumerate(ys) if math.isfinite(y)]
    if len(indices) > points:
        intervals = points // 2
        edges = [len(indices) * k // intervals for k in range(intervals + 1)]
        extremes: list[int] = []
        for start, stop in pairwise(edges):
            interval = indices[start:stop]
            extremes += sorted({min(interval, key=ys.__getitem__), max(interval, key=ys.__getitem__)})
        indices = extremes
    return [xs[i] for i in indices], [ys[i] for i in indices]


def values_suit_log_scale(ys: Sequence[float]) -> bool:
    """Return True if a linear axis would show the smallest values as zero; non-finite values are ignored."""
    finite = [y for y in ys if math.isfinite(y)]
    return bool(finite) and suits_log_scale(min(finite), max(finite))


def positive_or_nan(ys: Sequence[float]) -> list[float]:
    """Replace zeros and negative values, which a log axis cannot show, by NaN."""
    return [y if y > 0 else math.nan for y in ys]


def smooth(ys: Sequence[float], span: float) -> list[float]:
    """Return the exponential moving average over about ``span`` values, bias-corrected at the start.

    Args:
        ys: values in order; non-finite values are ignored.
        span: number of values that carry most of the weight, at least 1; with 1, the result is the series itself.

    Returns:
        One average per value; nan before the first finite value.
    """
    decay = 1 - 1 / max(1.0, span)
    total = weight = 0.0
    averages: list[float] = []
    for y in ys:
        if math.isfinite(y):
            total = decay * total + (1 - decay) * y
            weight = decay * weight + (1 - decay)
        averages.append(total / weight if weight else math.nan)
    return averages


def default_span(length: int) -> float:
    """Return the smoothing span for a series of this length: a fiftieth of it, at most 1000 values."""
    return min(1000.0, max(1.0, length / 50))
