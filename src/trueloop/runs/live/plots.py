"""Build the panels of a run in progress from merged rows; they are the same panels as in the run's report."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

from trueloop.core.downsampling import DownsampledSeries
from trueloop.core.formatting import format_count, format_float
from trueloop.runs.live.feed import FeedReader
from trueloop.runs.live.journal import JournalReader
from trueloop.runs.panels import (
    GROUP_ROLES,
    Curve,
    Kind,
    Panel,
    Role,
    best_point,
    evaluation_curves,
    metric_title,
    subsample_marks,
)
from trueloop.runs.series import default_span, envelope, positive_or_nan, smooth, values_suit_log_scale

MAX_POINTS: Final = 400  # points of a curve, which is sent repeatedly while the run is in progress
SERIES_TITLES: Final[Mapping[str, tuple[str, Role]]] = {
    "lr": ("Learning rate", "rate"),
    "memory_mib": ("Memory (MiB)", "memory"),
    "live_graphs": ("Graphs alive", "memory"),
}


def run_panels(run: JournalReader, smoothing: float = 1.0) -> list[Panel]:
    """Build the panels of a journal: loss, each metric, learning rate, gradient norm, speed, waiting, memory.

    Args:
        run: the journal.
        smoothing: factor of the default smoothing span; 0 = no smoothing.
    """
    panels = [
        _loss_panel(run, smoothing),
        *_metric_panels(run),
        _rate_panel(run),
        _norm_panel(run, smoothing),
        *_speed_panels(run, smoothing),
        _series_panel("memory_mib", run.memory),
    ]
    return [panel for panel in panels if any(curve.y for curve in panel.curves)]


def feed_panels(feed: FeedReader, smoothing: float = 1.0) -> list[Panel]:
    """Build the panels of a feed: loss, learning rate, gradient norm, speed, memory, graphs.

    Args:
        feed: the feed.
        smoothing: as for `run_panels`.
    """
    series = feed.series
    panels = [
        _sampled_panel("loss", "Loss", "train", series.get("loss_read") or series.get("loss"), smoothing),
        _series_panel("lr", series.get("lr")),
        _sampled_panel("grad_norm", "Gradient norm", "norm", series.get("grad_norm"), smoothing, log=True),
        _pace_panel(series.get("seconds")),
        *(_series_panel(name, series.get(name)) for name in ("memory_mib", "live_graphs")),
    ]
    return [panel for panel in panels if any(curve.y for curve in panel.curves) or panel.marks]


def _loss_panel(run: JournalReader, smoothing: float) -> Panel:
    rows = run.rows.rows
    updates = [row.update for row in rows]
    line = smooth([row.loss for row in rows], smoothing * default_span(len(rows)))
    curves = [
        _range_curve("train, every update", "train", updates, [(row.loss_low, row.loss_high) for row in rows]),
        _curve("train", "train", updates, line),
        *evaluation_curves(run.evaluations, "loss", MAX_POINTS),
    ]
    return Panel(
        name="loss",
        title="Loss",
        caption=_newest_caption(curves[1:]),
        curves=curves,
        log=values_suit_log_scale(line),
        marks=subsample_marks(run.skipped),
        best=best_point(run.evaluations, "loss"),
    )


def _metric_panels(run: JournalReader) -> Iterator[Panel]:
    names = dict.fromkeys(name for evaluation in run.evaluations for name in evaluation.metrics if name != "loss")
    for name in names:
        curves = evaluation_curves(run.evaluations, name, MAX_POINTS)
        yield Panel(
            name=f"metric_{name}",
            title=metric_title(name),
            caption=_newest_caption(curves),
            curves=curves,
            best=best_point(run.evaluations, name),
        )


def _rate_panel(run: JournalReader) -> Panel:
    updates = [row.update for row in run.rows.rows]
    first = _curve("group 0" if run.rates else "learning rate", "rate", updates, [row.lr for row in run.rows.rows])
    other_curves = [
        _curve(f"group {group}", GROUP_ROLES[group % len(GROUP_ROLES)], series.updates, series.values)
        for group, series in enumerate(run.rates, 1)
    ]
    curves = [first, *other_curves]
    return Panel(name="lr", title="Learning rate", caption=_range_caption(curves), curves=curves)


def _norm_panel(run: JournalReader, smoothing: float) -> Panel:
    rows = run.rows.rows
    updates = [row.update for row in rows]
    lowest, highest = positive_or_nan([row.norm_low for row in rows]), positive_or_nan([row.norm_high for row in rows])
    line = smooth(positive_or_nan([row.norm for row in rows]), smoothing * default_span(len(rows)))
    curves = [
        _range_curve("norm, every update", "norm", updates, list(zip(lowest, highest, strict=True))),
        _curve("norm", "norm", updates, line),
    ]
    return Panel(
        name="grad_norm",
        title="Gradient norm",
        caption=_range_caption(curves[:1]),
        curves=curves,
        log=True,
        marks=subsample_marks(run.skipped),
    )


def _speed_panels(run: JournalReader, smoothing: float) -> Iterator[Panel]:
    rows = [row for row in run.rows.rows if row.total_s > 0]
    updates, span = [row.update for row in rows], smoothing * default_span(len(rows))
    speeds = smooth([row.examples / row.total_s for row in rows], span)
    curves = [_curve("examples/s", "speed", updates, speeds)]
    yield Panel(name="throughput", title="Examples per second", caption=_range_caption(curves), curves=curves)
    waits = smooth([100 * min(1.0, row.wait_s / row.total_s) for row in rows], span)
    curves = [_curve("share", "wait", updates, waits)]
    yield Panel(
        name="waiting", title="Time spent waiting for data", caption=_range_caption(curves), curves=curves, percent=True
    )


def _sampled_panel(
    name: str, title: str, role: Role, series: DownsampledSeries[float] | None, smoothing: float, *, log: bool = False
) -> Panel:
    """Build the panel of a series that was sampled in bursts; non-finite values are marked."""
    updates, values = (series.updates, series.values) if series else ([], [])
    drawable = positive_or_nan(values) if log else values
    line = smooth(drawable, smoothing * default_span(len(drawable)))
    label = {"grad_norm": "norm"}.get(name, name)
    curves = [_curve(f"{label}, not smoothed", role, updates, drawable, kind="raw"), _curve(label, role, updates, line)]
    nonfinite = [update for update, value in zip(updates, values, strict=True) if not math.isfinite(value)]
    remark = f" {format_count(len(nonfinite), 'value')} not finite, marked below." if nonfinite else ""
    return Panel(
        name=name,
        title=title,
        caption=_ends_caption(drawable) + remark,
        curves=curves,
        log=log or values_suit_log_scale(line),
        marks=subsample_marks(nonfinite),
    )


def _series_panel(name: str, series: DownsampledSeries[float] | None) -> Panel:
    title, role = SERIES_TITLES[name]
    curves = [_curve(title.lower(), role, series.updates, series.values)] if series else []
    return Panel(name=name.removesuffix("_mib"), title=title, caption=_range_caption(curves), curves=curves)


def _pace_panel(seconds: DownsampledSeries[float] | None) -> Panel:
    points = list(zip(seconds.updates, seconds.values, strict=True)) if seconds else []
    updates, paces = list[int](), list[float]()
    for (start, start_s), (end, end_s) in pairwise(points):
        if end_s > start_s:
            updates.append(end)
            paces.append((end - start) / (end_s - start_s))
    curves = [_curve("updates/s", "speed", updates, paces)]
    return Panel(name="throughput", title="Updates per second", caption=_range_caption(curves), curves=curves)


def _curve(label: str, role: Role, xs: Sequence[float], values: Sequence[float], kind: Kind = "line") -> Curve:
    x, y = envelope(xs, values, MAX_POINTS)
    return Curve(label=label, role=role, kind=kind, x=x, y=y)


def _range_curve(label: str, role: Role, updates: Sequence[int], ranges: Sequence[tuple[float, float]]) -> Curve:
    """Build a curve that alternates between the lowest and highest value of each row of merged updates."""
    merged = any(low != high for low, high in ranges if not math.isnan(low))
    xs = [update for update in updates for _ in (0, 1)] if merged else updates
    ys = [bound for bounds in ranges for bound in bounds] if merged else [low for low, _ in ranges]
    return _curve(label, role, xs, ys, kind="raw")


def _newest_caption(curves: Sequence[Curve]) -> str:
    newest = ", ".join(f"{curve.label} {format_float(curve.y[-1])}" for curve in curves if curve.y)
    return f"Newest: {newest}." if newest else "No finite value yet."


def _ends_caption(values: Sequence[float]) -> str:
    ends = [format_float(value) for value in values if math.isfinite(value)]
    return f"From {ends[0]} to {ends[-1]}." if ends else "No finite value yet."


def _range_caption(curves: Sequence[Curve]) -> str:
    values = [value for curve in curves for value in curve.y]
    return f"Between {format_float(min(values))} and {format_float(max(values))}." if values else "No finite value yet."
