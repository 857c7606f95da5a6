"""Render the charts of evidence as inline SVG: lines, bars and grids of influence; CSS classes set the colours."""

import math
from collections.abc import Sequence

from trueloop.core.axis_ticks import Axis, suits_log_scale
from trueloop.core.formatting import format_float
from trueloop.core.html import Markup, element
from trueloop.verification.evidence import Bars, Chart, Curve, Grid

WIDTH, HEIGHT = 560, 240  # these and the following sizes are in pixels of the unscaled image
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


def _svg(width: float, height: float, title: str, shapes: Sequence[object], css_class: str = "chart") -> Markup:
    return element("svg", *shapes, viewBox=f"0 0 {width:g} {height:g}", role="img", aria_label=title, class_=css_class)


def _curve(curve: Curve) -> tuple[Markup, str]:
    values = [value for line in curve.lines.values() for value in line if math.isfinite(value)]
    if not values:
        return Markup(), "No value was finite."
    level = [] if curve.level is None else [curve.level]
    low, high = min([*values, *level]), max([*values, *level])
    last = max(1, max(len(line) for line in curve.lines.values()) - 1)
    x = Axis(low=0, high=last, start=LEFT, end=WIDTH - RIGHT)
    y = Axis(low=low, high=high, start=HEIGHT - BOTTOM, end=TOP, log=suits_log_scale(low, high))
    shapes: list[Markup] = []
    for tick in y.ticks():
        height = y.position(tick)
        shapes.append(element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=height, y2=height, class_="grid"))
        shapes.append(element("text", f"{tick:.4g}", x=LEFT - 8, y=height + 4, text_anchor="end"))
    shapes += [
        element("text", number, x=x.position(number), y=HEIGHT - 8, text_anchor="middle")
        for number in sorted({0, last // 2, last})
    ]
    shapes.append(element("text", curve.x_label, x=LEFT - 14, y=HEIGHT - 8, text_anchor="end"))
    if curve.level is not None:
        height = y.position(curve.level)
        shapes.append(element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=height, y2=height, class_="mark"))
    for line in curve.lines.values():
        stride = max(1, len(line) // MAX_POINTS)
        points = " ".join(
            f"{x.position(number)},{y.position(value)}"
            for number, value in enumerate(line)
            if math.isfinite(value) and (number % stride == 0 or number == len(line) - 1)
        )
        shapes.append(element("polyline", points=points, class_="curve"))
    ranges = "; ".join(
        f"{name} from {format_float(line[0])} to {format_float(line[-1])}" for name, line in curve.lines.items() if line
    )
    level_remark = "" if curve.level is None else f" The dotted line is {format_float(curve.level)}."
    return _svg(WIDTH, HEIGHT, curve.title, shapes), f"{ranges[:1].upper()}{ranges[1:]}.{level_remark}"


def _bars(bars: Bars) -> tuple[Markup, str]:
    finite = [abs(value) for value in bars.values.values() if math.isfinite(value)]
    largest = max(finite, default=0.0) or 1.0
    max_width = WIDTH - 150 - 120
    shapes: list[Markup] = []
    for number, (name, value) in enumerate(bars.values.items()):
        top = number * BAR
        width = round(max_width * min(1.0, abs(value) / largest), 1) if math.isfinite(value) else max_width
        shapes.append(element("text", name, x=142, y=top + 19, text_anchor="end"))
        shapes.append(element("rect", x=150, y=top + 5, width=max(1.0, width), height=BAR - 10, rx=3, class_="amount"))
        shapes.append(element("text", _format_amount(value), x=158 + max(1.0, width), y=top + 19))
    caption = "; ".join(f"{name} {_format_amount(value)}" for name, value in bars.values.items())
    unit = f", in {bars.unit}" if bars.unit else ""
    return _svg(WIDTH, BAR * len(bars.values), bars.title, shapes), f"{caption}{unit}."


def _format_amount(value: float) -> str:
    return f"{value:g}" if value == int(value if math.isfinite(value) else 0) else format_float(value)


def _grid(grid: Grid) -> tuple[Markup, str]:
    largest = max((v for row in grid.values for v in row if math.isfinite(v)), default=0.0) or 1.0
    wrong = set(grid.wrong)
    shapes: list[Markup] = []
    for number, label in enumerate(grid.labels):
        middle = LABEL + number * CELL + CELL / 2
        shapes.append(element("text", label, x=middle, y=LABEL - 8, text_anchor="middle"))
        shapes.append(element("text", label, x=LABEL - 8, y=middle + 4, text_anchor="end"))
    for i, row in enumerate(grid.values):
        for j, value in enumerate(row):
            style = "bad" if (i, j) in wrong else "on" if value else "off"
            # The square root keeps an influence of a hundredth visible.
            intensity = 1.0 if not math.isfinite(value) else 0.25 + 0.75 * math.sqrt(min(1.0, value / largest))
            tooltip = element(
                "title", f"{grid.rows} {grid.labels[i]}, {grid.columns} {grid.labels[j]}: {format_float(value)}"
            )
            x, y = LABEL + j * CELL, LABEL + i * CELL
            opacity = round(intensity, 2) if value else 1
            shapes.append(
                element(
                    "rect", tooltip, x=x + 1, y=y + 1, width=CELL - 2, height=CELL - 2, class_=style, opacity=opacity
                )
            )
    size = LABEL + CELL * len(grid.labels)
    shapes.append(element("text", grid.columns, x=LABEL, y=18))
    shapes.append(element("text", grid.rows, x=-size, y=18, transform="rotate(-90)"))
    caption = (
        f"{len(wrong)} of the coloured cells should be empty."
        if wrong
        else "All other cells are empty, as they should be."
    )
    return _svg(max(size, 240), size + 4, grid.title, shapes, "matrix"), caption
