"""A long series made drawable: thinned without losing an extreme, smoothed without inventing a value."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

POINTS = 800  # twice what a screen column or a printed half page can tell apart


def envelope(xs: Sequence[float], ys: Sequence[float], points: int = POINTS) -> tuple[list[float], list[float]]:
    """Thin a curve to at most ``points`` points that keep the least and greatest value of every stretch.

    Args:
        xs: positions, ascending.
        ys: as many values; those that are not finite are left out.
        points: upper bound, even.

    Returns:
        The positions and values that are left, in order.

    Cost: linear; half a second for 10**6 points.
    """
    kept = [i for i, y in enumerate(ys) if math.isfinite(y)]
    if len(kept) > points:
        stretches = points // 2
        edges = [len(kept) * k // stretches for k in range(stretches + 1)]
        extremes: list[int] = []
        for start, stop in pairwise(edges):
            stretch = kept[start:stop]
            extremes += sorted({min(stretch, key=ys.__getitem__), max(stretch, key=ys.__getitem__)})
        kept = extremes
    return [xs[i] for i in kept], [ys[i] for i in kept]


def smooth(ys: Sequence[float], span: float) -> list[float]:
    """Average exponentially over about ``span`` values back, without the bias towards zero at the start.

    Args:
        ys: values in order; one that is not finite counts for nothing.
        span: values that carry most of the weight, >= 1; 1 returns the series itself.

    Returns:
        As many values; nan until the first finite one.
    """
    keep = 1 - 1 / max(1.0, span)
    total = weight = 0.0
    out: list[float] = []
    for y in ys:
        if math.isfinite(y):
            total = keep * total + (1 - keep) * y
            weight = keep * weight + (1 - keep)
        out.append(total / weight if weight else math.nan)
    return out


def natural_span(length: int) -> float:
    """Choose how far to smooth a series of this length: over a fiftieth of it, at most 1000 values."""
    return min(1000.0, max(1.0, length / 50))
