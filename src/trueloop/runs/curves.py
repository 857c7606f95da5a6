"""Plot the curves of a run with matplotlib: all plots in one PNG, or one SVG per plot for the report."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trueloop.core.errors import MissingExtra
from trueloop.core.formatting import replace_unprintable
from trueloop.runs.atomic_file import write_atomically
from trueloop.runs.history import History
from trueloop.runs.panels import Curve, Panel, build_panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CURVES_NAME = "curves.png"
TEXT_COLOUR = "#1f2328"
BAD_COLOUR = "#dc2626"
ROLE_COLOURS: Mapping[str, str] = {
    "train": "#2563eb",
    "val": "#ea580c",
    "test": "#16a34a",
    "rate": "#7c3aed",
    "norm": "#0d9488",
    "speed": "#0284c7",
    "wait": "#be185d",
    "memory": "#4d7c0f",
}
"""Colours by role. An SVG uses a CSS variable per role (--train), which a page can set; this colour is the fallback."""

RUN_COLOURS = ("#2563eb", "#ea580c", "#16a34a", "#be185d", "#7c3aed", "#0d9488", "#a16207", "#64748b")
"""Colours of the runs in one plot; the ninth run has the colour of the first and a dashed line, and so on."""


def save_curves(history: History, path_png: Path) -> None:
    """Draw every plot of a run into one PNG; raises the same errors as `save_panels`.

    Cost: about a second, and 3 s more per 10**6 updates.
    """
    save_panels(build_panels(history), f"{history.started.name}, {history.last_update} updates", path_png)


def save_panels(panels: Sequence[Panel], title: str, path_png: Path) -> None:
    """Draw plots into one PNG, three per row; the file is replaced atomically.

    Raises:
        MissingExtra: matplotlib is not installed.
        RunFolderError: the file cannot be written.
    """
    columns = 1 if len(panels) < 2 else 2 if len(panels) in {2, 4} else 3
    rows = max(1, -(-len(panels) // columns))
    figure = _figure(4.6 * columns, 3.2 * rows + 0.5)
    figure.suptitle(_escape_mathtext(title), x=0.01, ha="left", color=TEXT_COLOUR, weight="bold")
    for index, panel in enumerate(panels, 1):
        axes = figure.add_subplot(rows, columns, index)
        axes.set_title(_escape_mathtext(panel.title), loc="left", fontsize=10, color=TEXT_COLOUR)
        draw_panel(axes, panel)
    buffer = io.BytesIO()
    _save(figure, buffer, format="png", dpi=144)
    write_atomically(path_png, buffer.getvalue(), "The curves")


def svg_figures(history: History) -> dict[str, str]:
    """Draw every plot as an SVG fragment: transparent, text in ``currentColor``, no external references.

    Returns:
        Panel name -> markup, in the order of `build_panels`.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    return {panel.name: render_svg(panel) for panel in build_panels(history)}


def render_svg(panel: Panel) -> str:
    """Draw one plot as an SVG fragment; see `svg_figures`."""
    figure = _figure(5.6, 3.1)
    draw_panel(figure.add_subplot(), panel)
    buffer = io.StringIO()
    from matplotlib import rc_context

    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "trueloop"}):
        _save(figure, buffer, format="svg", transparent=True)
    return _svg_fragment(buffer.getvalue(), panel)


def draw_panel(axes: Axes, panel: Panel) -> None:
    """Draw one plot on matplotlib axes."""
    for curve in panel.curves:
        if curve.y:
            _draw_curve(axes, curve)
    if panel.best is not None:
        x, y = panel.best
        axes.plot([x], [y], "*", ms=13, mfc=ROLE_COLOURS["val"], mec="none", label="best", zorder=5)
    if panel.marks:
        bottom = axes.get_xaxis_transform()  # x in updates, y as a share of the height
        axes.plot(
            list(panel.marks), [0.02] * len(panel.marks), "^", ms=5, color=BAD_COLOUR, label="skipped", transform=bottom
        )
    _style_axes(axes, panel)


def _draw_curve(axes: Axes, curve: Curve) -> None:
    colour, style = ROLE_COLOURS[curve.role], "-"
    if curve.run is not None:
        colour, style = RUN_COLOURS[curve.run % len(RUN_COLOURS)], "-" if curve.run < len(RUN_COLOURS) else "--"
    single_marker = "o" if len(curve.x) == 1 else None  # a line through one point is invisible
    x, y, label = list(curve.x), list(curve.y), _legend_label(curve.label)
    if curve.kind == "raw":
        axes.plot(x, y, color=colour, alpha=0.28, lw=0.8, marker=single_marker, ms=3)
    elif curve.kind == "line":
        axes.plot(x, y, style, color=colour, lw=1.7, marker=single_marker, ms=4, label=label)
    else:
        marker = "o" if len(curve.x) <= 60 else None
        axes.plot(x, y, style, color=colour, lw=1.7, marker=marker, ms=4, label=label)


def _style_axes(axes: Axes, panel: Panel) -> None:
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
    axes.set_xlabel("update", color=TEXT_COLOUR, fontsize=9, loc="right")
    axes.tick_params(which="both", colors=TEXT_COLOUR, labelsize=9, length=0)
    axes.grid(visible=True, color=TEXT_COLOUR, alpha=0.13, lw=0.7)
    for spine in axes.spines.values():
        spine.set_visible(False)
    if len(axes.get_legend_handles_labels()[0]) > 1:
        axes.legend(frameon=False, fontsize=9, labelcolor=TEXT_COLOUR, handlelength=1.4)


def css_colour(colour: str) -> str:
    """Return a curve's colour as CSS, with a variable that a dark page can set to a lighter colour."""
    role = next((role for role, role_colour in ROLE_COLOURS.items() if role_colour == colour), None)
    return f"var(--{role}, {colour})" if role else colour


def _figure(width_in: float, height_in: float) -> Figure:
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise MissingExtra("matplotlib", "train") from error
    return Figure(figsize=(width_in, height_in), layout="constrained", facecolor="white")


def _save(figure: Figure, target: io.BytesIO | io.StringIO, **options: Any) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # characters missing in the font are drawn as boxes
        figure.savefig(target, **options)


def _legend_label(name: str) -> str:
    """Escape a leading underscore, which makes matplotlib omit a name from the legend."""
    return _escape_mathtext(f" {name}" if name.startswith("_") else name)


def _escape_mathtext(name: str) -> str:
    """Escape "$", which matplotlib parses as mathematics, and replace characters that XML cannot hold."""
    return replace_unprintable(name).replace("$", r"\$")


def _svg_fragment(markup: str, panel: Panel) -> str:
    """Reduce matplotlib's SVG document to an element that inherits the colours and font of its page."""
    markup = markup[markup.index("<svg") :]
    markup = re.sub(r"<metadata>.*?</metadata>", "", markup, flags=re.DOTALL)
    markup = re.sub(r"<style.*?</style>|<!--.*?-->", "", markup, flags=re.DOTALL)  # a style would affect the page
    box = re.search(r'viewBox="[^"]*"', markup)
    title = f"<title>{escape(replace_unprintable(f'{panel.title}. {panel.caption}'))}</title>"
    attributes = f'stroke-linejoin="round" role="img" aria-label="{escape(replace_unprintable(panel.title))}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {box.group() if box else ""} {attributes}>'
    markup = head + title + markup[markup.index(">") + 1 :]
    used = set(re.findall(r"url\(#([^)]+)\)", markup)) | set(re.findall(r'xlink:href="#([^"]+)"', markup))
    prefix = re.sub(r"\W", lambda match: f"-{ord(match[0]):x}-", panel.name)
    markup = re.sub(r' id="([^"]+)"', lambda match: f' id="{prefix}-{match[1]}"' if match[1] in used else "", markup)
    markup = re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}-\1)", markup)
    markup = re.sub(r'xlink:href="#([^"]+)"', rf'href="#{prefix}-\1"', markup)
    markup = re.sub(r"font-family:[^;\"]*;?", "", markup)
    for colour in ROLE_COLOURS.values():
        markup = markup.replace(colour, css_colour(colour))
    markup = markup.replace(BAD_COLOUR, f"var(--bad, {BAD_COLOUR})").replace(TEXT_COLOUR, "currentColor")
    return re.sub(r"\s*\n\s*", "\n", markup).strip()
