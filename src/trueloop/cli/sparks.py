"""Draw curves in a terminal: one line of blocks per curve, all curves of a panel on one scale."""

import math
from collections.abc import Iterator, Sequence

from trueloop.core.formatting import format_float, replace_unprintable
from trueloop.runs.panels import Curve, Panel

BLOCKS = "▁▂▃▄▅▆▇█"
ASCII = "_.-~=+*#"  # for an output that can only encode ASCII
_GAP = " "  # where no finite value was measured


def sparkline(values: Sequence[float], blocks: str = BLOCKS) -> str:
    """Draw finite values as bars, from the lowest to the highest block."""
    low, high = min(values, default=0.0), max(values, default=0.0)
    is_flat = high - low <= 1e-9 * abs(high)  # a difference of this size is rounding
    step = 1.0 if is_flat else (high - low) / (len(blocks) - 1)
    return "".join(blocks[round((value - low) / step)] for value in values)


def draw_panel(panel: Panel, width: int, blocks: str = BLOCKS) -> Iterator[str]:
    """Draw one panel: its title, then per curve a line of blocks with its lowest, highest and last value.

    Args:
        panel: panel with at least one value; its "raw" curves are not drawn.
        width: number of columns of the drawing.
        blocks: characters from the lowest to the highest value.
    """
    curves = [curve for curve in panel.curves if curve.y and curve.kind != "raw"]
    last = max((curve.x[-1] for curve in curves), default=0)
    yield f"{replace_unprintable(panel.title)}  (updates 1 to {last:.0f}{', log scale' if panel.log else ''})"
    heights = [_height(y, log=panel.log) for curve in curves for y in curve.y]
    finite = [height for height in heights if math.isfinite(height)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)
    names = [replace_unprintable(curve.label) for curve in curves]
    longest = min(28, max(map(len, names), default=0))
    for name, curve in zip(names, curves, strict=True):
        values = (
            f"{format_float(min(curve.y), 4)} to {format_float(max(curve.y), 4)}, last {format_float(curve.y[-1], 4)}"
        )
        cells = max(8, width - longest - len(values) - 6)
        shares = _shares(curve, cells, (low, high), last, log=panel.log)
        line = "".join(
            _GAP if share is None else blocks[min(len(blocks) - 1, int(share * len(blocks)))] for share in shares
        )
        label = name if len(name) <= longest else name[: longest - 1] + "…"
        yield f"  {label:<{longest}}  {line:<{cells}}  {values}"


def _shares(curve: Curve, cells: int, bounds: tuple[float, float], last: float, *, log: bool) -> Iterator[float | None]:
    """Divide the updates into one range per cell, and yield the mean height of each range, in [0, 1]."""
    ranges: list[list[float]] = [[] for _ in range(cells)]
    for x, y in zip(curve.x, curve.y, strict=True):
        ranges[min(cells - 1, int(x / last * cells)) if last > 0 else 0].append(_height(y, log=log))
    low, high = bounds
    previous: float | None = None
    for values in _up_to_last(ranges):
        if values:
            share = (sum(values) / len(values) - low) / (high - low) if high > low else 0.5
            previous = min(1.0, max(0.0, share))
        yield previous  # a value stays until the metric is measured again


def _up_to_last(ranges: Sequence[list[float]]) -> Sequence[list[float]]:
    """Drop the empty ranges at the end."""
    filled = [k for k, values in enumerate(ranges) if values]
    return ranges[: filled[-1] + 1] if filled else ()


def _height(y: float, *, log: bool) -> float:
    return math.log10(y) if log and y > 0 else y
