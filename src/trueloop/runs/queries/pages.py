"""Write a PNG with the curves of one or several runs, or an HTML page with their curves and differences."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trueloop.core.formatting import format_count, format_float
from trueloop.core.html import Markup, element, section, table
from trueloop.runs.atomic_file import write_atomically
from trueloop.runs.curves import RUN_COLOURS, css_colour, save_panels
from trueloop.runs.history import History
from trueloop.runs.html_page import curves_section, render_page
from trueloop.runs.panels import Curve, Kind, Panel, build_panels
from trueloop.runs.queries.comparison import Difference, MetricComparison
from trueloop.runs.queries.overview import Point, metric_points
from trueloop.runs.series import default_span, envelope, positive_or_nan, smooth, values_suit_log_scale

Series = tuple[Sequence[float], Sequence[float]]
"""Update numbers and the values at these updates."""


def overlay_panels(histories: Mapping[str, History]) -> list[Panel]:
    """Build the panels of several runs: training loss, every metric, learning rate, gradient norm and speed.

    Args:
        histories: histories by the label of each run.

    Returns:
        The panels that are not empty; `Curve.run` is the index of a curve's run.
    """
    return [panel for panel in _all_panels(histories) if panel.curves]


def _all_panels(histories: Mapping[str, History]) -> Iterator[Panel]:
    losses = {label: _smooth_loss(history, history.updates.loss) for label, history in histories.items()}
    yield _panel("train_loss", "Training loss, smoothed", "line", losses)
    evaluations = {label: metric_points(history.evaluations) for label, history in histories.items()}
    for metric in dict.fromkeys(name for by_metric in evaluations.values() for name in by_metric):
        values = {
            label: ([point.update for point in points], [point.value for point in points])
            for label, by_metric in evaluations.items()
            for points in [by_metric.get(metric, [])]
        }
        yield _panel(f"metric_{metric}", metric, "points", values)
    rates = {label: (history.updates.update, history.updates.lr) for label, history in histories.items()}
    yield _panel("lr", "Learning rate", "line", rates)
    norms = {label: _smooth_loss(history, history.updates.grad_norm) for label, history in histories.items()}
    yield _panel("grad_norm", "Gradient norm, smoothed", "line", norms, log=True)
    speeds = {label: _smooth_loss(history, _examples_per_s(history)) for label, history in histories.items()}
    yield _panel("throughput", "Examples per second", "line", speeds)


def _panel(name: str, title: str, kind: Kind, series: Mapping[str, Series], *, log: bool = False) -> Panel:
    curves: list[Curve] = []
    log = log or ("loss" in name and values_suit_log_scale([y for _, ys in series.values() for y in ys]))
    for run, (label, (xs, ys)) in enumerate(series.items()):  # a run without values keeps its colour for other plots
        x, y = envelope(xs, positive_or_nan(ys) if log else ys)
        if y:
            curves.append(Curve(label=label, role="train", kind=kind, x=x, y=y, run=run))
    ends = ", ".join(f"{curve.label} {format_float(curve.y[-1])}" for curve in curves)
    return Panel(name=name, title=title, caption=f"At the end: {ends or 'no finite value'}.", curves=curves, log=log)


def _smooth_loss(history: History, ys: Sequence[float]) -> Series:
    return history.updates.update, smooth(ys, default_span(len(ys)))


def _examples_per_s(history: History) -> list[float]:
    updates = history.updates
    pairs = zip(updates.examples, updates.total_s, strict=True)
    return [examples / seconds if seconds > 0 else math.nan for examples, seconds in pairs]


def run_panels(histories: Mapping[str, History]) -> list[Panel]:
    """Build the panels of one run, or of several runs in the same plots."""
    return build_panels(next(iter(histories.values()))) if len(histories) == 1 else overlay_panels(histories)


def save_png(histories: Mapping[str, History], path: Path) -> None:
    """Draw the curves of runs into a PNG; raises the same errors as `save_panels`."""
    save_panels(run_panels(histories), _title(histories), path)


def save_html(
    histories: Mapping[str, History],
    path: Path,
    *,
    differences: Sequence[Difference] = (),
    metrics: Sequence[MetricComparison] = (),
) -> None:
    """Write a page with the curves and differences of runs; the file is replaced atomically.

    Args:
        histories: histories by the label of each run.
        path: path of the page.
        differences: differences between these runs, with one value per run, in the order of ``histories``.
        metrics: comparison of each metric, with one value per run, in the order of ``histories``.

    Raises:
        MissingExtra: matplotlib is not installed.
        RunFolderError: the file cannot be written.
    """
    tables = _tables(list(histories), differences, metrics)
    parts = [_header(histories), *tables, curves_section(run_panels(histories))]
    write_atomically(path, render_page(f"{_title(histories)}: trueloop", parts).encode(), "The page")


def format_value(value: Any) -> str:
    """Format a recorded fact for display."""
    if value is None or isinstance(value, bool):
        return "none" if value is None else str(value).lower()
    return str(value)


def format_point(point: Point | None) -> str:
    """Format a metric value with its update; "" for None."""
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
    labels: Sequence[str], differences: Sequence[Difference], metrics: Sequence[MetricComparison]
) -> Iterator[Markup]:
    if metrics:
        rows = [
            [metric.metric, heading, *map(format_point, points)]
            for metric in metrics
            for heading, points in (("best", metric.best), ("last", metric.last))
        ]
        yield section("Metrics", table(["", "", *labels], rows, class_="numbers left"))
    for group in dict.fromkeys(difference.group for difference in differences):
        members = [difference for difference in differences if difference.group == group]
        rows = [[difference.name, *map(format_value, difference.values)] for difference in members]
        yield section(f"What differs: {group}", table(["", *labels], rows, class_="numbers left"))
