"""Curves in a terminal: one line of blocks per curve, all curves of a panel on one scale."""

import math
from collections.abc import Iterator, Sequence

from trueloop.core.formatting import format_float, replace_unprintable
from trueloop.runs.panels import Curve, Panel

BLOCKS = "▁▂▃▄▅▆▇█"
ASCII = "_.-~=+*#"  # for an output that takes nothing else
_GAP = " "  # where nothing finite was measured


def draw_panel(panel: Panel, most: int, blocks: str = BLOCKS) -> Iterator[str]:
    """Draw one panel: its title, then per curve a line of blocks with its least, greatest and newest value.

    Args:
        panel: with at least one value; its pale curves are left out.
        most: columns to write to.
        blocks: from the lowest to the highest.
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
        cells = max(8, most - longest - len(values) - 6)
        shares = _shares(curve, cells, (low, high), last, log=panel.log)
        line = "".join(
            _GAP if share is None else blocks[min(len(blocks) - 1, int(share * len(blocks)))] for share in shares
        )
        shown = name if len(name) <= longest else name[: longest - 1] + "…"
        yield f"  {shown:<{longest}}  {line:<{cells}}  {values}"


def _shares(curve: Curve, cells: int, ends: tuple[float, float], last: float, *, log: bool) -> Iterator[float | None]:
    """Cut the updates into as many stretches as there are cells, and give the height of each, in [0, 1]."""
    stretches: list[list[float]] = [[] for _ in range(cells)]
    for x, y in zip(curve.x, curve.y, strict=True):
        stretches[min(cells - 1, int(x / last * cells)) if last > 0 else 0].append(_height(y, log=log))
    low, high = ends
    before: float | None = None
    for stretch in _up_to_last(stretches):
        if stretch:
            share = (sum(stretch) / len(stretch) - low) / (high - low) if high > low else 0.5
            before = min(1.0, max(0.0, share))
        yield before  # a metric that is measured seldom holds until it is measured again


def _up_to_last(stretches: Sequence[list[float]]) -> Sequence[list[float]]:
    filled = [k for k, stretch in enumerate(stretches) if stretch]
    return stretches[: filled[-1] + 1] if filled else ()


def _height(y: float, *, log: bool) -> float:
    return math.log10(y) if log and y > 0 else y
