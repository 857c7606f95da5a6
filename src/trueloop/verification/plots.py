"""Renders the charts of evidence as inline SVG: lines, bars and grids of influence; CSS classes set the colours."""

import math
from collections.abc import Sequence

from trueloop.core.axis_ticks import Axis, suits_log_scale
from trueloop.core.formatting import format_float
from trueloop.core.html import Markup, element
from trueloop.verification.evidence import Bars, Chart, Curve, Grid

WIDTH, HEIGHT = 560, 240
LEFT, RIGHT, TOP, BOTTOM = 64, 14, 12, 26
CELL, LABEL = 26, 58
BAR = 30
MAX_POINTS = 400
"""Approximate number of points of a line; more could not be distinguished."""


def render_chart(chart: Chart) -> Markup:
    """Draw one chart as a figure with its title and a caption."""
    if isinstance(chart, Curve):
        body, caption = _curve(chart)
    elif isinstance(chart, Bars):
        body, caption = _bars(chart)
    else:
        body, caption = _grid(chart)
    return element("figure", element("h3", chart.title), body, element("figcaption", caption))


def _svg(width: float, height: float, title: str, parts: Sequence[object], kind: str = "chart") -> Markup:
    return element("svg", *parts, viewBox=f"0 0 {width:g} {height:g}", role="img", aria_label=title, class_=kind)


def _curve(curve: Curve) -> tuple[Markup, str]:
    values = [value for line in curve.lines.values() for value in line if math.isfinite(value)]
    if not values:
        return Markup(), "No value was finite."
    level = [] if curve.level is None else [curve.level]
    low, high = min([*values, *level]), max([*values, *level])
    last = max(1, max(len(line) for line in curve.lines.values()) - 1)
    x = Axis(low=0, high=last, start=LEFT, end=WIDTH - RIGHT)
    y = Axis(low=low, high=high, start=HEIGHT - BOTTOM, end=TOP, log=suits_log_scale(low, high))
    parts: list[Markup] = []
    for tick in y.ticks():
        at = y.position(tick)
        parts.append(element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=at, y2=at, class_="grid"))
        parts.append(element("text", f"{tick:.4g}", x=LEFT - 8, y=at + 4, text_anchor="end"))
    parts += [
        element("text", number, x=x.position(number), y=HEIGHT - 8, text_anchor="middle")
        for number in sorted({0, last // 2, last})
    ]
    parts.append(element("text", curve.x_label, x=LEFT - 14, y=HEIGHT - 8, text_anchor="end"))
    if curve.level is not None:
        at = y.position(curve.level)
        parts.append(element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=at, y2=at, class_="mark"))
    for line in curve.lines.values():
        stride = max(1, len(line) // MAX_POINTS)
        points = " ".join(
            f"{x.position(number)},{y.position(value)}"
            for number, value in enumerate(line)
            if math.isfinite(value) and (number % stride == 0 or number == len(line) - 1)
        )
        parts.append(element("polyline", points=points, class_="curve"))
    ends = "; ".join(
        f"{name} from {format_float(line[0])} to {format_float(line[-1])}" for name, line in curve.lines.items() if line
    )
    goal = "" if curve.level is None else f" The dotted line is {format_float(curve.level)}."
    return _svg(WIDTH, HEIGHT, curve.title, parts), f"{ends[:1].upper()}{ends[1:]}.{goal}"


def _bars(bars: Bars) -> tuple[Markup, str]:
    finite = [abs(value) for value in bars.values.values() if math.isfinite(value)]
    most = max(finite, default=0.0) or 1.0
    max_width = WIDTH - 150 - 120
    parts: list[Markup] = []
    for number, (name, value) in enumerate(bars.values.items()):
        top = number * BAR
        width = round(max_width * min(1.0, abs(value) / most), 1) if math.isfinite(value) else max_width
        parts.append(element("text", name, x=142, y=top + 19, text_anchor="end"))
        parts.append(element("rect", x=150, y=top + 5, width=max(1.0, width), height=BAR - 10, rx=3, class_="amount"))
        parts.append(element("text", _amount(value), x=158 + max(1.0, width), y=top + 19))
    caption = "; ".join(f"{name} {_amount(value)}" for name, value in bars.values.items())
    unit = f", in {bars.unit}" if bars.unit else ""
    return _svg(WIDTH, BAR * len(bars.values), bars.title, parts), f"{caption}{unit}."


def _amount(value: float) -> str:
    return f"{value:g}" if value == int(value if math.isfinite(value) else 0) else format_float(value)


def _grid(grid: Grid) -> tuple[Markup, str]:
    most = max((v for row in grid.values for v in row if math.isfinite(v)), default=0.0) or 1.0
    wrong = set(grid.wrong)
    parts: list[Markup] = []
    for number, label in enumerate(grid.labels):
        middle = LABEL + number * CELL + CELL / 2
        parts.append(element("text", label, x=middle, y=LABEL - 8, text_anchor="middle"))
        parts.append(element("text", label, x=LABEL - 8, y=middle + 4, text_anchor="end"))
    for i, row in enumerate(grid.values):
        for j, value in enumerate(row):
            kind = "bad" if (i, j) in wrong else "on" if value else "off"
            # The square root keeps an influence of a hundredth visible.
            strength = 1.0 if not math.isfinite(value) else 0.25 + 0.75 * math.sqrt(min(1.0, value / most))
            tooltip = element(
                "title", f"{grid.rows} {grid.labels[i]}, {grid.columns} {grid.labels[j]}: {format_float(value)}"
            )
            x, y = LABEL + j * CELL, LABEL + i * CELL
            opacity = round(strength, 2) if value else 1
            parts.append(
                element(
                    "rect", tooltip, x=x + 1, y=y + 1, width=CELL - 2, height=CELL - 2, class_=kind, opacity=opacity
                )
            )
    size = LABEL + CELL * len(grid.labels)
    parts.append(element("text", grid.columns, x=LABEL, y=18))
    parts.append(element("text", grid.rows, x=-size, y=18, transform="rotate(-90)"))
    caption = (
        f"{len(wrong)} of the coloured cells should be empty."
        if wrong
        else "All other cells are empty, as they should be."
    )
    return _svg(max(size, 240), size + 4, grid.title, parts, "matrix"), caption
