"""Render the layers of a model as an HTML table with bars: gradient by depth, size of an update, dead units."""

import math
from collections.abc import Sequence
from typing import Final

from trueloop.core.findings import LayerState
from trueloop.core.formatting import format_float, format_percent
from trueloop.core.html import Markup, element, section, table

MAX_ROWS: Final = 64  # layers that are listed
DECADES: Final = 6  # of a logarithmic bar
USUAL_RATIO: Final = 1e-3  # of the weight, of an update: the middle of the bar
UNUSUAL_RATIO: Final = (1e-5, 0.1)
MANY_IDLE: Final = 0.5  # of the units of a layer
IDLE: Final = {"relu": "dead", "sigmoid": "saturated", "tanh": "saturated"}


def render_layers(layers: Sequence[LayerState]) -> Markup:
    """Return the section of the layers; empty without layers."""
    if not layers:
        return Markup()
    largest = max((each.gradient for each in layers if each.gradient and math.isfinite(each.gradient)), default=0.0)
    rows = [_row(each, largest) for each in layers]
    if len(rows) > MAX_ROWS:
        left_out = [f"{len(rows) - MAX_ROWS} more layers", "", "", ""]
        rows = [*rows[: MAX_ROWS // 2], left_out, *rows[-MAX_ROWS // 2 :]]
    head = ("layer", "gradient", "update / weight", "idle units")
    note = (
        "First layer first, at the end of the run. Gradient: norm, on a logarithmic scale of "
        f"{DECADES} decades. Update / weight: about 0.001, the middle of the bar, is usual. Idle: units of a ReLU that "
        "are 0 for all samples of the latest batches, or saturated values of a sigmoid or tanh."
    )
    shown = table(head, rows, class_="layers")
    return section("Layers", element("div", shown, element("p", note, class_="soft"), class_="block"))


def _row(layer: LayerState, largest: float) -> Sequence[object]:
    gradient, ratio, idle = layer.gradient, layer.update_ratio, layer.idle
    vanishes = gradient is not None and largest > 0 and gradient < largest / 10**DECADES
    is_unusual = ratio is not None and not UNUSUAL_RATIO[0] <= ratio <= UNUSUAL_RATIO[1]
    usual = USUAL_RATIO * 10 ** (DECADES / 2)
    words = "" if idle is None else f"{format_percent(idle)} {IDLE[layer.activation]}"
    return (
        element("code", layer.layer),
        _bar("backward", _decades(gradient, largest), _words(gradient), odd=vanishes),
        _bar("optimizer", _decades(ratio, usual), _words(ratio), odd=is_unusual),
        _bar("data", idle or 0.0, words, odd=idle is not None and idle >= MANY_IDLE),
    )


def _words(value: float | None) -> str:
    return "" if value is None else format_float(value)


def _decades(value: float | None, largest: float) -> float:
    """Return the length of a logarithmic bar, from 0 to 1."""
    if not value or not math.isfinite(value) or largest <= 0:
        return 0.0 if not value else 1.0
    return min(1.0, max(0.0, 1 + math.log10(value / largest) / DECADES))


def _bar(name: str, length: float, words: str, *, odd: bool) -> Markup:
    if not words:
        return Markup()
    bar = element("div", element("i", class_=name, style=f"width: {100 * length:.1f}%"), class_="meter")
    return Markup(bar + element("span", words, class_="warning" if odd else "value"))
