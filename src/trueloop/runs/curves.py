"""The curves of a run, drawn with matplotlib: one PNG for people, one SVG per plot for the report."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trueloop.core.errors import MissingExtra, RunFolderError
from trueloop.core.formatting import printable
from trueloop.runs.history import History
from trueloop.runs.panels import Curve, Panel, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CURVES_NAME = "curves.png"
TEXT = "#1f2328"
BAD = "#dc2626"
COLOURS: Mapping[str, str] = {
    "train": "#2563eb",
    "val": "#ea580c",
    "test": "#16a34a",
    "rate": "#7c3aed",
    "norm": "#0d9488",
    "speed": "#0284c7",
    "wait": "#be185d",
    "memory": "#4d7c0f",
}
"""By role. In an SVG each is a CSS variable (--train) with this as its fallback, so that a page can choose."""


RUNS = ("#2563eb", "#ea580c", "#16a34a", "#be185d", "#7c3aed", "#0d9488", "#a16207", "#64748b")
"""One after the other for the runs on one plot; from the ninth on they come again, dashed."""


def save_curves(history: History, path_png: Path) -> None:
    """Draw every plot of a run into one PNG; see `save_panels` for what is raised.

    Cost: about a second, and 3 s more per 10**6 updates.
    """
    save_panels(panels(history), f"{history.started.name}, {history.last_update} updates", path_png)


def save_panels(shown: Sequence[Panel], title: str, path_png: Path) -> None:
    """Draw plots into one PNG, three to a row; written beside and renamed, so never half there.

    Raises:
        MissingExtra: matplotlib is not installed.
        RunFolderError: the file cannot be written.
    """
    columns = 1 if len(shown) < 2 else 2 if len(shown) in {2, 4} else 3
    rows = max(1, -(-len(shown) // columns))
    figure = _figure(4.6 * columns, 3.2 * rows + 0.5)
    figure.suptitle(_plain(title), x=0.01, ha="left", color=TEXT, weight="bold")
    for place, panel in enumerate(shown, 1):
        axes = figure.add_subplot(rows, columns, place)
        axes.set_title(_plain(panel.title), loc="left", fontsize=10, color=TEXT)
        draw(axes, panel)
    buffer = io.BytesIO()
    _save(figure, buffer, format="png", dpi=144)
    beside = path_png.with_name(path_png.name + ".part")
    try:
        beside.write_bytes(buffer.getvalue())
        beside.replace(path_png)
    except OSError as error:
        raise RunFolderError(f"The curves cannot be written to {path_png}: {error.strerror or error}.") from error


def figures(history: History) -> dict[str, str]:
    """Draw every plot as an SVG fragment: transparent, text in ``currentColor``, no reference to anything outside.

    Returns:
        Panel name -> markup, in the order of `panels`.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    return {panel.name: svg(panel) for panel in panels(history)}


def svg(panel: Panel) -> str:
    """Draw one plot as an SVG fragment; see `figures`."""
    figure = _figure(5.6, 3.1)
    draw(figure.add_subplot(), panel)
    buffer = io.StringIO()
    from matplotlib import rc_context

    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "trueloop"}):
        _save(figure, buffer, format="svg", transparent=True)
    return _fragment(buffer.getvalue(), panel)


def draw(axes: Axes, panel: Panel) -> None:
    """Draw one plot onto matplotlib axes."""
    for curve in panel.curves:
        if curve.y:
            _draw_curve(axes, curve)
    if panel.best is not None:
        x, y = panel.best
        axes.plot([x], [y], "*", ms=13, mfc=COLOURS["val"], mec="none", label="best", zorder=5)
    if panel.marks:
        bottom = axes.get_xaxis_transform()  # x in updates, y as a share of the height
        axes.plot(list(panel.marks), [0.02] * len(panel.marks), "^", ms=5, color=BAD, label="skipped", transform=bottom)
    _style(axes, panel)


def _draw_curve(axes: Axes, curve: Curve) -> None:
    colour, style = COLOURS[curve.role], "-"
    if curve.run is not None:
        colour, style = RUNS[curve.run % len(RUNS)], "-" if curve.run < len(RUNS) else "--"
    alone = "o" if len(curve.x) == 1 else None  # one point makes no line
    x, y, label = list(curve.x), list(curve.y), _label(curve.label)
    if curve.kind == "raw":
        axes.plot(x, y, color=colour, alpha=0.28, lw=0.8, marker=alone, ms=3)
    elif curve.kind == "line":
        axes.plot(x, y, style, color=colour, lw=1.7, marker=alone, ms=4, label=label)
    else:
        marker = "o" if len(curve.x) <= 60 else None
        axes.plot(x, y, style, color=colour, lw=1.7, marker=marker, ms=4, label=label)


def _style(axes: Axes, panel: Panel) -> None:
    from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator, StrMethodFormatter

    if panel.log:
        axes.set_yscale("log")
        low, high = axes.get_ylim()
        axes.yaxis.set_minor_locator(LogLocator(subs=(2, 5) if high < 200 * low else ()))
        axes.yaxis.set_minor_formatter(StrMethodFormatter("{x:g}"))
    if panel.percent:
        axes.set_ylim(0, 100)
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g} %" if panel.percent else "{x:g}"))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_xlabel("update", color=TEXT, fontsize=9, loc="right")
    axes.tick_params(which="both", colors=TEXT, labelsize=9, length=0)
    axes.grid(visible=True, color=TEXT, alpha=0.13, lw=0.7)
    for spine in axes.spines.values():
        spine.set_visible(False)
    if len(axes.get_legend_handles_labels()[0]) > 1:
        axes.legend(frameon=False, fontsize=9, labelcolor=TEXT, handlelength=1.4)


def css_colour(colour: str) -> str:
    """Write a colour of a curve so that a dark page can choose a lighter one."""
    role = next((role for role, each in COLOURS.items() if each == colour), None)
    return f"var(--{role}, {colour})" if role else colour


def _figure(width_in: float, height_in: float) -> Figure:
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise MissingExtra("matplotlib", "train") from error
    return Figure(figsize=(width_in, height_in), layout="constrained", facecolor="white")


def _save(figure: Figure, target: io.BytesIO | io.StringIO, **options: Any) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # a name in a script the font lacks shows as boxes
        figure.savefig(target, **options)


def _label(name: str) -> str:
    """Keep matplotlib from leaving a name out of the legend that begins with an underscore."""
    return _plain(f" {name}" if name.startswith("_") else name)


def _plain(name: str) -> str:
    """Keep matplotlib from reading a $ as mathematics, and XML from meeting what it cannot hold."""
    return printable(name).replace("$", r"\$")


def _fragment(markup: str, panel: Panel) -> str:
    """Cut matplotlib's document down to an element that fits into a page and takes over its colours and font."""
    markup = markup[markup.index("<svg") :]
    markup = re.sub(r"<metadata>.*?</metadata>", "", markup, flags=re.DOTALL)
    markup = re.sub(r"<style.*?</style>|<!--.*?-->", "", markup, flags=re.DOTALL)  # a style would reach the page
    box = re.search(r'viewBox="[^"]*"', markup)
    title = f"<title>{escape(printable(f'{panel.title}. {panel.caption}'))}</title>"
    named = f'stroke-linejoin="round" role="img" aria-label="{escape(printable(panel.title))}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {box.group() if box else ""} {named}>'
    markup = head + title + markup[markup.index(">") + 1 :]
    used = set(re.findall(r"url\(#([^)]+)\)", markup)) | set(re.findall(r'xlink:href="#([^"]+)"', markup))
    prefix = re.sub(r"\W", lambda found: f"-{ord(found[0]):x}-", panel.name)
    markup = re.sub(r' id="([^"]+)"', lambda found: f' id="{prefix}-{found[1]}"' if found[1] in used else "", markup)
    markup = re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}-\1)", markup)
    markup = re.sub(r'xlink:href="#([^"]+)"', rf'href="#{prefix}-\1"', markup)
    markup = re.sub(r"font-family:[^;\"]*;?", "", markup)
    for colour in COLOURS.values():
        markup = markup.replace(colour, css_colour(colour))
    markup = markup.replace(BAD, f"var(--bad, {BAD})").replace(TEXT, "currentColor")
    return re.sub(r"\s*\n\s*", "\n", markup).strip()
