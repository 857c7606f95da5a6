"""Render the curves of a run as inline SVG without scripts; colours come from CSS classes."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from trueloop.core.axis_ticks import Axis, suits_log_scale
from trueloop.core.findings import Series
from trueloop.core.formatting import format_count, format_float, format_number
from trueloop.core.html import Markup, element

WIDTH, HEIGHT = 560, 260
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 12, 24
MAX_POINTS: Final = 500  # more points cannot be distinguished at this width
MAX_DRAWN: Final = 1e300  # largest value that is drawn: the difference of larger values may be infinite


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """One series to draw."""

    name: str
    """Name of the series; it is also the CSS class of its line."""
    title: str
    series: Series
    marks: Sequence[tuple[int, str]] = ()
    """Updates at which failures were found, each with its code."""
    log: bool = False
    """True to use a logarithmic scale if the values suit it."""
    reference: Series | None = None
    """The same quantity in another run, drawn behind the line."""
    level: tuple[float, str] | None = None
    """A value to draw a horizontal line at, and what it is."""


def render_figure(plot: Plot) -> Markup:
    """Return the figure of one plot with its title and caption."""
    points = _finite_points(plot.series)
    nonfinite = len(plot.series.values) - len(points)
    caption = _caption([value for _, value in points], nonfinite)
    title = element("h3", plot.title)
    if not points:
        return element("figure", title, element("figcaption", caption))
    return element("figure", title, _svg(plot, _downsample(points), caption), element("figcaption", caption))


def _svg(plot: Plot, points: Sequence[tuple[int, float]], caption: str) -> Markup:
    others = _finite_points(plot.reference) if plot.reference else []
    level = plot.level if plot.level and math.isfinite(plot.level[0]) else None
    values = [value for _, value in (*points, *others)] + ([level[0]] if level else [])
    low, high = min(values), max(values)
    log = plot.log and suits_log_scale(low, high)
    pad = 0 if log else (high - low) * 0.05 or abs(high) * 0.1 or 1.0
    updates = [update for update, _ in (*points, *others)]
    x = Axis(low=min(updates), high=max(updates), start=LEFT, end=WIDTH - RIGHT)
    y = Axis(low=low - pad, high=high + pad, start=HEIGHT - BOTTOM, end=TOP, log=log)
    body = [*_grid(x, y), *_marks(plot.marks, x), *(_level(level, y) if level else ())]
    body += [*(_line("reference", _downsample(others), x, y) if others else ()), *_line(plot.name, points, x, y)]
    attributes = {"viewBox": f"0 0 {WIDTH} {HEIGHT}", "role": "img", "aria_label": f"{plot.title}. {caption}"}
    return element("svg", *body, **attributes)


def _line(name: str, points: Sequence[tuple[int, float]], x: Axis, y: Axis) -> Iterator[Markup]:
    positions = " ".join(f"{x.position(update)},{y.position(value)}" for update, value in points)
    if len(points) > 1:
        yield element("polyline", points=positions, class_=f"curve {name}")
    else:
        at_x, _, at_y = positions.partition(",")
        yield element("circle", cx=at_x, cy=at_y, r=4, class_=f"point {name}")


def _level(level: tuple[float, str], y: Axis) -> Iterator[Markup]:
    value, words = level
    position = y.position(value)
    title = element("title", f"{words}: {format_float(value)}")
    yield element("line", title, x1=LEFT, x2=WIDTH - RIGHT, y1=position, y2=position, class_="level")
    yield element("text", words, x=WIDTH - RIGHT, y=position - 4, text_anchor="end")


def _grid(x: Axis, y: Axis) -> Iterator[Markup]:
    for tick in y.ticks():
        position = y.position(tick)
        yield element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=position, y2=position, class_="grid")
        yield element("text", f"{tick:.6g}", x=LEFT - 8, y=position + 4, text_anchor="end")
    for tick in x.ticks(integers=True):
        yield element(
            "text", format_number(round(tick)), x=x.position(tick), y=HEIGHT - BOTTOM + 18, text_anchor="middle"
        )
    yield element("text", "update", x=LEFT - 14, y=HEIGHT - BOTTOM + 18, text_anchor="end")


def _marks(marks: Iterable[tuple[int, str]], x: Axis) -> Iterator[Markup]:
    for update, code in marks:
        if x.low <= update <= x.high:
            position = x.position(update)
            title = element("title", f"{code}, update {update}")
            yield element("line", title, x1=position, x2=position, y1=TOP, y2=HEIGHT - BOTTOM, class_="mark")


def _finite_points(series: Series) -> list[tuple[int, float]]:
    pairs = zip(series.updates, series.values, strict=True)
    return [(update, value) for update, value in pairs if math.isfinite(value) and abs(value) < MAX_DRAWN]


def _downsample(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """Return at most `MAX_POINTS` points: the minimum and maximum of each of ``MAX_POINTS // 2`` sections."""
    if len(points) <= MAX_POINTS:
        return list(points)
    half = MAX_POINTS // 2
    edges = [len(points) * k // half for k in range(half + 1)]
    extremes: list[tuple[int, float]] = []
    for start, stop in pairwise(edges):
        values = [points[index][1] for index in range(start, stop)]
        indices = {start + values.index(min(values)), start + values.index(max(values))}
        extremes += [points[index] for index in sorted(indices)]
    return extremes


def _caption(values: Sequence[float], nonfinite: int) -> str:
    suffix = f"; {format_number(nonfinite)} not finite" if nonfinite else ""
    if not values:
        return f"No value was finite ({format_count(nonfinite, 'value')})."
    if min(values) == max(values):
        return f"{format_float(values[0])} throughout{suffix}."
    range_text = f"From {format_float(values[0])} to {format_float(values[-1])}"
    return f"{range_text}, between {format_float(min(values))} and {format_float(max(values))}{suffix}."
