"""Build the panels of a run in progress from merged rows; they are the same panels as in the run's report."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

from trueloop.core.axis_ticks import suits_log_scale
from trueloop.core.downsampling import DownsampledSeries
from trueloop.core.formatting import format_count, format_float
from trueloop.core.protocols import Evaluated
from trueloop.runs.live.feed import FeedReader
from trueloop.runs.live.journal import JournalReader
from trueloop.runs.panels import GROUP_ROLES, Curve, Panel, Role
from trueloop.runs.series import default_span, envelope, smooth

SPLIT_ROLES: Final[Mapping[str, Role]] = {"train": "train", "val": "val", "test": "test"}
MAX_MARKS: Final = 200  # number of marked updates under a plot; more could not be distinguished
MAX_POINTS: Final = 400  # points of a curve, which is sent repeatedly while the run is in progress
SERIES_TITLES: Final[Mapping[str, tuple[str, Role]]] = {
    "lr": ("Learning rate", "rate"),
    "memory_mib": ("Memory (MiB)", "memory"),
    "live_graphs": ("Graphs alive", "memory"),
}


def run_panels(run: JournalReader) -> list[Panel]:
    """Build the panels of a journal: loss, each metric, learning rate, gradient norm, speed, waiting, memory."""
    panels = [
        _loss_panel(run),
        *_metric_panels(run),
        _rate_panel(run),
        _norm_panel(run),
        *_speed_panels(run),
        _series_panel("memory_mib", run.memory),
    ]
    return [panel for panel in panels if any(curve.y for curve in panel.curves)]


def feed_panels(feed: FeedReader) -> list[Panel]:
    """Build the panels of a feed: loss, learning rate, gradient norm, speed, memory, graphs."""
    series = feed.series
    panels = [
        _sampled_panel("loss", "Loss", "train", series.get("loss")),
        _series_panel("lr", series.get("lr")),
        _sampled_panel("grad_norm", "Gradient norm", "norm", series.get("grad_norm"), log=True),
        _pace_panel(series.get("seconds")),
        *(_series_panel(name, series.get(name)) for name in ("memory_mib", "live_graphs")),
    ]
    return [panel for panel in panels if any(curve.y for curve in panel.curves) or panel.marks]


def _loss_panel(run: JournalReader) -> Panel:
    rows = run.rows.rows
    at = [row.update for row in rows]
    line = smooth([row.loss for row in rows], default_span(len(rows)))
    curves = [
        _range_curve("train, every update", "train", at, [(row.loss_low, row.loss_high) for row in rows]),
        _curve("train", "train", at, line),
        *_evaluation_curves(run.evaluations, "loss"),
    ]
    return Panel(
        name="loss",
        title="Loss",
        caption=_newest_caption(curves[1:]),
        curves=curves,
        log=_suits_log_scale(line),
        marks=_subsample(run.skipped),
        best=_best_point(run, "loss"),
    )


def _metric_panels(run: JournalReader) -> Iterator[Panel]:
    names = dict.fromkeys(name for each in run.evaluations for name in each.metrics if name != "loss")
    for name in names:
        curves, words = _evaluation_curves(run.evaluations, name), name.replace("_", " ")
        title = words[:1].upper() + words[1:]
        yield Panel(
            name=f"metric_{name}",
            title=title,
            caption=_newest_caption(curves),
            curves=curves,
            best=_best_point(run, name),
        )


def _rate_panel(run: JournalReader) -> Panel:
    at = [row.update for row in run.rows.rows]
    first = _curve("group 0" if run.rates else "learning rate", "rate", at, [row.lr for row in run.rows.rows])
    others = [
        _curve(f"group {group}", GROUP_ROLES[group % len(GROUP_ROLES)], series.updates, series.values)
        for group, series in enumerate(run.rates, 1)
    ]
    curves = [first, *others]
    return Panel(name="lr", title="Learning rate", caption=_range_caption(curves), curves=curves)


def _norm_panel(run: JournalReader) -> Panel:
    rows = run.rows.rows
    at = [row.update for row in rows]
    curves = [
        _range_curve(
            "norm, every update",
            "norm",
            at,
            [(_positive_or_nan(row.norm_low), _positive_or_nan(row.norm_high)) for row in rows],
        ),
        _curve("norm", "norm", at, smooth([_positive_or_nan(row.norm) for row in rows], default_span(len(rows)))),
    ]
    return Panel(
        name="grad_norm",
        title="Gradient norm",
        caption=_range_caption(curves[:1]),
        curves=curves,
        log=True,
        marks=_subsample(run.skipped),
    )


def _speed_panels(run: JournalReader) -> Iterator[Panel]:
    rows = [row for row in run.rows.rows if row.total_s > 0]
    at, span = [row.update for row in rows], default_span(len(rows))
    speeds = smooth([row.examples / row.total_s for row in rows], span)
    curves = [_curve("examples/s", "speed", at, speeds)]
    yield Panel(name="throughput", title="Examples per second", caption=_range_caption(curves), curves=curves)
    waits = smooth([100 * min(1.0, row.wait_s / row.total_s) for row in rows], span)
    curves = [_curve("share", "wait", at, waits)]
    yield Panel(
        name="waiting", title="Time spent waiting for data", caption=_range_caption(curves), curves=curves, percent=True
    )


def _sampled_panel(
    name: str, title: str, role: Role, series: DownsampledSeries[float] | None, *, log: bool = False
) -> Panel:
    """Build the panel of a series that was sampled in bursts; non-finite values are marked."""
    at, values = (series.updates, series.values) if series else ([], [])
    drawable = [_positive_or_nan(value) for value in values] if log else values
    line = smooth(drawable, default_span(len(drawable)))
    label = {"grad_norm": "norm"}.get(name, name)
    curves = [_curve(f"{label}, as read", role, at, drawable, kind="raw"), _curve(label, role, at, line)]
    nonfinite = [update for update, value in zip(at, values, strict=True) if not math.isfinite(value)]
    remark = f" {format_count(len(nonfinite), 'value')} not finite, marked below." if nonfinite else ""
    log = log or _suits_log_scale(line)
    return Panel(
        name=name,
        title=title,
        caption=_newest_caption(curves[1:]) + remark,
        curves=curves,
        log=log,
        marks=_subsample(nonfinite),
    )


def _series_panel(name: str, series: DownsampledSeries[float] | None) -> Panel:
    title, role = SERIES_TITLES[name]
    curves = [_curve(title.lower(), role, series.updates, series.values)] if series else []
    return Panel(name=name.removesuffix("_mib"), title=title, caption=_range_caption(curves), curves=curves)


def _pace_panel(seconds: DownsampledSeries[float] | None) -> Panel:
    points = list(zip(seconds.updates, seconds.values, strict=True)) if seconds else []
    paces = [(after, (after - before) / (s - start)) for (before, start), (after, s) in pairwise(points) if s > start]
    curves = [_curve("updates/s", "speed", [at for at, _ in paces], [pace for _, pace in paces])]
    return Panel(name="throughput", title="Updates per second", caption=_range_caption(curves), curves=curves)


def _curve(label: str, role: Role, at: Sequence[float], values: Sequence[float], kind: str = "line") -> Curve:
    x, y = envelope(at, values, MAX_POINTS)
    return Curve(label=label, role=role, kind="raw" if kind == "raw" else "line", x=x, y=y)


def _range_curve(label: str, role: Role, at: Sequence[int], ends: Sequence[tuple[float, float]]) -> Curve:
    """Build a curve that alternates between the lowest and highest value of each row of merged updates."""
    merged = any(low != high for low, high in ends if not math.isnan(low))
    xs = [update for update in at for _ in (0, 1)] if merged else at
    ys = [end for both in ends for end in both] if merged else [low for low, _ in ends]
    x, y = envelope(xs, ys, MAX_POINTS)
    return Curve(label=label, role=role, kind="raw", x=x, y=y)


def _evaluation_curves(evaluations: Sequence[Evaluated], name: str) -> list[Curve]:
    curves: list[Curve] = []
    for split in dict.fromkeys(each.split for each in evaluations):
        rows = [each for each in evaluations if each.split == split and name in each.metrics]
        x, y = envelope([each.update for each in rows], [each.metrics[name] for each in rows], MAX_POINTS)
        curves.append(Curve(label=split, role=SPLIT_ROLES.get(split, "train"), kind="points", x=x, y=y))
    return curves


def _best_point(run: JournalReader, name: str) -> tuple[float, float] | None:
    marked = [each for each in run.evaluations if each.best and math.isfinite(each.metrics.get(name, math.nan))]
    best = max(marked, key=lambda each: (each.update, each.split == "val"), default=None)
    return (best.update, best.metrics[name]) if best else None


def _newest_caption(curves: Sequence[Curve]) -> str:
    ends = ", ".join(f"{curve.label} {format_float(curve.y[-1])}" for curve in curves if curve.y)
    return f"Newest: {ends}." if ends else "Nothing finite yet."


def _range_caption(curves: Sequence[Curve]) -> str:
    values = [value for curve in curves for value in curve.y]
    return f"Between {format_float(min(values))} and {format_float(max(values))}." if values else "Nothing finite yet."


def _suits_log_scale(values: Sequence[float]) -> bool:
    """Return True if a linear axis would show the smallest values as zero."""
    finite = [value for value in values if math.isfinite(value)]
    return bool(finite) and suits_log_scale(min(finite), max(finite))


def _positive_or_nan(value: float) -> float:
    return value if value > 0 else math.nan  # a log axis cannot show 0


def _subsample(updates: Sequence[int]) -> list[int]:
    every = list(updates)
    return every[:: max(1, len(every) // MAX_MARKS)]
