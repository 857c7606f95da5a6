"""Draws a failure's measured curves next to the healthy ones, as SVG that takes its colours from the page."""

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
    """Return all plots of a failure, as one block of HTML."""
    plots = "".join(_plot(plot) for plot in measured["plots"])
    return f'<div class="signature">{plots}</div>'


def thumb(measured: dict[str, Any]) -> str:
    """Return a small picture of what tells healthy and broken apart best, for a line of a table."""
    plot = max(measured["plots"], key=lambda each: each["apart"])
    lines = "".join(
        f'<path class="line {which}" d="M{"L".join(f"{_x(x):.0f} {_y(middle):.0f}" for x, _, middle, _ in run)}"/>'
        for which in BANDS
        for run in _runs(*(plot[which][name] for name in ("x", "least", "middle", "most")))
    )
    lines += "".join(_lost(plot, which) for which in BANDS)
    name = f"{plot['title']}: {plot['words']}"
    area = f"{LEFT} 0 {WIDTH - LEFT} {HEIGHT}"
    return f'<svg class="thumb" viewBox="{area}" role="img" aria-label="{escape(name)}">{lines}</svg>'


def _plot(plot: dict[str, Any]) -> str:
    scale = "logarithmic" if plot["log"] else "linear"
    name = f"{plot['title']}, healthy and broken, over {plot['last']} updates. {plot['words']}"
    parts = "".join(part for which in BANDS for part in _band(plot, which))
    return (
        f"<figure><b>{escape(plot['title'])} <i>{scale}</i></b>"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(name)}">{_axes(plot)}{parts}</svg>'
        f"<figcaption>{escape(plot['words'])}</figcaption></figure>"
    )


def _axes(plot: dict[str, Any]) -> str:
    low, high, foot = plot["low"], plot["high"], HEIGHT - BOTTOM
    middle = math.sqrt(low * high) if plot["log"] else (low + high) / 2
    values = ((0.0, low), (0.5, middle), (1.0, high)) if high > low else ((0.5, low),)
    labels = "".join(
        f'<text x="{LEFT - 5}" y="{_y(place) + 3.5:.1f}" text-anchor="end">{value:.3g}</text>'
        for place, value in values
    )
    return (
        f'<path class="axis" d="M{LEFT} {TOP}V{foot}H{WIDTH - 4}" fill="none"/>{labels}'
        f'<text x="{LEFT}" y="{HEIGHT - 4}">0</text>'
        f'<text x="{WIDTH - 4}" y="{HEIGHT - 4}" text-anchor="end">update {plot["last"]}</text>'
    )


def _band(plot: dict[str, Any], which: str) -> Iterator[str]:
    band = plot[which]
    for run in _runs(band["x"], band["least"], band["middle"], band["most"]):
        upper = [f"{_x(x):.1f} {_y(most):.1f}" for x, _, _, most in run]
        lower = [f"{_x(x):.1f} {_y(least):.1f}" for x, least, _, _ in reversed(run)]
        middle = [f"{_x(x):.1f} {_y(value):.1f}" for x, _, value, _ in run]
        yield f'<path class="band {which}" d="M{"L".join(upper + lower)}Z"/>'
        yield f'<path class="line {which}" d="M{"L".join(middle)}"/>'
    yield _lost(plot, which)


def _lost(plot: dict[str, Any], which: str) -> str:
    """Mark the first update with a value that is not finite."""
    lost = plot[which]["lost"]
    if lost is None or not plot["last"]:
        return ""
    return f'<path class="lost" d="M{_x(lost / plot["last"]):.1f} {TOP}V{HEIGHT - BOTTOM}"/>'


def _runs(*columns: Sequence[float | None]) -> Iterator[list[tuple[float, ...]]]:
    """Cut curves where nothing finite was measured."""
    run: list[tuple[float, ...]] = []
    for row in zip(*columns, strict=True):
        numbers = tuple(value for value in row if value is not None)
        if len(numbers) == len(row):
            run.append(numbers)
        elif run:
            yield run
            run = []
    if run:
        yield run


def _x(share: float) -> float:
    return LEFT + min(1.0, share) * (WIDTH - 4 - LEFT)


def _y(share: float) -> float:
    return HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - TOP)
