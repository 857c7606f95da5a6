"""Draw the measured curves of broken and healthy runs as SVG, whose colours the page sets."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
from typing import Any, Final

WIDTH: Final = 380
HEIGHT: Final = 150
LEFT: Final = 46
BOTTOM: Final = 18
TOP: Final = 8
BANDS: Final = ("healthy", "broken")


def figure(measured: dict[str, Any]) -> str:
    """Return all plots of a failure as one HTML element."""
    plots = "".join(_plot(plot) for plot in measured["plots"])
    return f'<div class="signature">{plots}</div>'


def thumb(measured: dict[str, Any]) -> str:
    """Return a small plot, for a table, of the quantity that differs most between healthy and broken runs."""
    plot = max(measured["plots"], key=lambda each: each["apart"])
    lines = "".join(
        f'<path class="line {run}" d="M{"L".join(f"{_x(x):.0f} {_y(middle):.0f}" for x, _, middle, _ in segment)}"/>'
        for run in BANDS
        for segment in _finite_segments(*(plot[run][name] for name in ("x", "least", "middle", "most")))
    )
    lines += "".join(_nonfinite_mark(plot, run) for run in BANDS)
    name = f"{plot['title']}: {plot['words']}"
    area = f"{LEFT} 0 {WIDTH - LEFT} {HEIGHT}"
    return f'<svg class="thumb" viewBox="{area}" role="img" aria-label="{escape(name)}">{lines}</svg>'


def _plot(plot: dict[str, Any]) -> str:
    scale = "logarithmic" if plot["log"] else "linear"
    name = f"{plot['title']}, healthy and broken, over {plot['last']} updates. {plot['words']}"
    parts = "".join(part for run in BANDS for part in _band(plot, run))
    return (
        f"<figure><b>{escape(plot['title'])} <i>{scale}</i></b>"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(name)}">{_axes(plot)}{parts}</svg>'
        f"<figcaption>{escape(plot['words'])}</figcaption></figure>"
    )


def _axes(plot: dict[str, Any]) -> str:
    low, high, bottom = plot["low"], plot["high"], HEIGHT - BOTTOM
    middle = math.sqrt(low * high) if plot["log"] else (low + high) / 2
    values = ((0.0, low), (0.5, middle), (1.0, high)) if high > low else ((0.5, low),)
    labels = "".join(
        f'<text x="{LEFT - 5}" y="{_y(share) + 3.5:.1f}" text-anchor="end">{value:.3g}</text>'
        for share, value in values
    )
    return (
        f'<path class="axis" d="M{LEFT} {TOP}V{bottom}H{WIDTH - 4}" fill="none"/>{labels}'
        f'<text x="{LEFT}" y="{HEIGHT - 4}">0</text>'
        f'<text x="{WIDTH - 4}" y="{HEIGHT - 4}" text-anchor="end">update {plot["last"]}</text>'
    )


def _band(plot: dict[str, Any], run: str) -> Iterator[str]:
    band = plot[run]
    for segment in _finite_segments(band["x"], band["least"], band["middle"], band["most"]):
        upper = [f"{_x(x):.1f} {_y(highest):.1f}" for x, _, _, highest in segment]
        lower = [f"{_x(x):.1f} {_y(lowest):.1f}" for x, lowest, _, _ in reversed(segment)]
        middle = [f"{_x(x):.1f} {_y(value):.1f}" for x, _, value, _ in segment]
        yield f'<path class="band {run}" d="M{"L".join(upper + lower)}Z"/>'
        yield f'<path class="line {run}" d="M{"L".join(middle)}"/>'
    yield _nonfinite_mark(plot, run)


def _nonfinite_mark(plot: dict[str, Any], run: str) -> str:
    """Mark the first update with a value that is not finite."""
    first_share = plot[run]["lost"]
    if first_share is None or not plot["last"]:
        return ""
    return f'<path class="lost" d="M{_x(first_share / plot["last"]):.1f} {TOP}V{HEIGHT - BOTTOM}"/>'


def _finite_segments(*columns: Sequence[float | None]) -> Iterator[list[tuple[float, ...]]]:
    """Split curves into segments without non-finite values."""
    segment: list[tuple[float, ...]] = []
    for row in zip(*columns, strict=True):
        numbers = tuple(value for value in row if value is not None)
        if len(numbers) == len(row):
            segment.append(numbers)
        elif segment:
            yield segment
            segment = []
    if segment:
        yield segment


def _x(share: float) -> float:
    return LEFT + min(1.0, share) * (WIDTH - 4 - LEFT)


def _y(share: float) -> float:
    return HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - TOP)
