"""Write the curves of one or several runs to a PNG, or to a self-contained HTML page with their differences."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trueloop.core.errors import RunFolderError
from trueloop.core.formatting import format_count, format_float
from trueloop.core.html import Markup, element, section, table
from trueloop.runs.curves import RUN_COLOURS, css_colour, render_svg, save_panels
from trueloop.runs.history import History
from trueloop.runs.html_page import render_page
from trueloop.runs.panels import Panel, build_panels
from trueloop.runs.queries.comparison import Difference, MetricComparison
from trueloop.runs.queries.overlay import overlay_panels
from trueloop.runs.queries.overview import Point


def run_panels(histories: Mapping[str, History]) -> list[Panel]:
    """Return the panels of one run, or the overlaid panels of several."""
    return build_panels(next(iter(histories.values()))) if len(histories) == 1 else overlay_panels(histories)


def save_png(histories: Mapping[str, History], path: Path) -> None:
    """Draw runs, by label, into a PNG; raises like `save_panels`."""
    save_panels(run_panels(histories), _title(histories), path)


def save_html(
    histories: Mapping[str, History],
    path: Path,
    *,
    differences: Sequence[Difference] = (),
    measured: Sequence[MetricComparison] = (),
) -> None:
    """Write a page with the curves and differences of runs; the file is replaced atomically.

    Args:
        histories: histories by the label of each run.
        path: path of the page.
        differences: differences between these runs, in their order.
        measured: metrics of these runs, in their order.

    Raises:
        MissingExtra: matplotlib is not installed.
        RunFolderError: the file cannot be written.
    """
    labels = list(histories)
    parts = [_header(histories), *_tables(labels, differences, measured), _curves(histories)]
    partial = path.with_name(path.name + ".part")
    try:
        partial.write_text(render_page(f"{_title(histories)}: trueloop", parts), encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        raise RunFolderError(f"The page cannot be written to {path}: {error.strerror or error}.") from error


def format_value(value: Any) -> str:
    """Format the value of a fact for people."""
    if value is None or isinstance(value, bool):
        return "none" if value is None else str(value).lower()
    return str(value)


def format_point(point: Point | None) -> str:
    """Format a value with its update; empty if there is none."""
    return f"{format_float(point.value, 4)} @ {point.update}" if point else ""


def _title(histories: Mapping[str, History]) -> str:
    name, history = next(iter(histories.items()))
    if len(histories) == 1:
        return f"{name}, {format_count(history.last_update, 'update')}"
    return f"{format_count(len(histories), 'run')} side by side"


def _header(histories: Mapping[str, History]) -> Markup:
    items = (
        element(
            "li",
            element("span", class_="dot", style=f"background:{css_colour(RUN_COLOURS[k % len(RUN_COLOURS)])}"),
            f" {name}: {format_count(history.last_update, 'update')}",
        )
        for k, (name, history) in enumerate(histories.items())
    )
    legend = element("ul", *items, class_="legend") if len(histories) > 1 else ""
    return element("header", element("p", "trueloop runs", class_="kicker"), element("h1", _title(histories)), legend)


def _tables(
    labels: Sequence[str], differences: Sequence[Difference], measured: Sequence[MetricComparison]
) -> Iterator[Markup]:
    if measured:
        rows = [
            [each.metric, word, *map(format_point, found)]
            for each in measured
            for word, found in (("best", each.best), ("last", each.last))
        ]
        yield section("Metrics", table(["", "", *labels], rows, class_="numbers left"))
    for group in dict.fromkeys(each.group for each in differences):
        rows = [[each.name, *map(format_value, each.values)] for each in differences if each.group == group]
        yield section(f"What differs: {group}", table(["", *labels], rows, class_="numbers left"))


def _curves(histories: Mapping[str, History]) -> Markup:
    drawn = (
        element("figure", element("h3", panel.title), Markup(render_svg(panel)), element("figcaption", panel.caption))
        for panel in run_panels(histories)
    )
    return section("Curves", element("div", *drawn, class_="curves"))
