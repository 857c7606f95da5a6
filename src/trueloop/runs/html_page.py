"""Render a self-contained HTML page in the style of the report, without scripts and external resources."""

from collections.abc import Iterable, Sequence
from importlib.resources import files

from trueloop.core.html import Markup, element, render_document, section
from trueloop.runs.curves import render_svg
from trueloop.runs.panels import Panel


def render_page(title: str, parts: Iterable[Markup]) -> str:
    """Render a page of the non-empty parts."""
    style = files("trueloop.runs").joinpath("report.css").read_text(encoding="utf-8")
    return render_document(title, style, *(part for part in parts if part))


def curves_section(panels: Sequence[Panel]) -> Markup:
    """Render the section with one figure per plot."""
    figures = (
        element("figure", element("h3", panel.title), Markup(render_svg(panel)), element("figcaption", panel.caption))
        for panel in panels
    )
    return section("Curves", element("div", *figures, class_="curves"))
