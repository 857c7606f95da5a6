"""Build the plots of a run as data, for different renderers."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from trueloop.core.formatting import format_float
from trueloop.core.protocols import Evaluated
from trueloop.runs.history import History, best_evaluation
from trueloop.runs.series import MAX_POINTS, default_span, envelope, positive_or_nan, smooth, values_suit_log_scale

Kind = Literal["raw", "line", "points"]
Role = Literal["train", "val", "test", "rate", "norm", "speed", "wait", "memory"]
GROUP_ROLES: tuple[Role, ...] = ("rate", "val", "norm", "wait", "train", "test")
"""Colour roles of parameter groups with different learning rates; the seventh group has the role of the first again."""
MAX_MARKS = 200  # number of updates to mark under a plot; more could not be distinguished


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One series of a panel, already downsampled."""

    label: str
    role: Role
    """Quantity that the series measures; it decides the colour."""
    kind: Kind
    """Style: "raw" = pale line in the background, "line" = line, "points" = line with a marker on every value."""
    x: Sequence[float]
    y: Sequence[float]
    run: int | None = None
    """Index of the run, which decides the colour if several runs are drawn; None for a single run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One plot."""

    name: str
    """Short unique name: "loss", "grad_norm"."""
    title: str
    caption: str
    """A sentence with the numbers of the plot, which is also its text alternative."""
    curves: Sequence[Curve]
    log: bool = False
    percent: bool = False
    marks: Sequence[int] = ()
    """Updates that are marked under the plot, such as skipped updates."""
    best: tuple[float, float] | None = None
    """Update and value of the best evaluation; None if that evaluation does not have the metric of this panel."""


def build_panels(history: History) -> list[Panel]:
    """Build the panels of a run: loss, every other metric, learning rate, gradient norm, speed, waiting, memory."""
    return [panel for panel in _all_panels(history) if any(curve.y for curve in panel.curves)]


def _all_panels(history: History) -> Iterator[Panel]:
    updates, xs = history.updates, history.updates.update
    marks = subsample_marks(history.skipped)
    yield _loss_panel(history, marks)
    yield from _metric_panels(history)
    yield _rate_panel(history)
    positive = positive_or_nan(updates.grad_norm)
    skipped = f"; {len(history.skipped)} not finite and skipped, marked below" if marks else ""
    yield Panel(
        name="grad_norm",
        title="Gradient norm",
        caption=f"{_describe_range('The gradient norm before clipping', positive)[:-1]}{skipped}.",
        curves=_raw_and_smooth("norm", "norm", xs, positive),
        log=True,
        marks=marks,
    )
    yield from _speed_panels(history)
    yield from _memory_panel(history)


def _rate_panel(history: History) -> Panel:
    groups = history.updates.rates
    points = [envelope(history.updates.update, rates) for rates in groups]
    labels = [f"group {group}" for group in range(len(groups))] if len(groups) > 1 else ["learning rate"]
    return Panel(
        name="lr",
        title="Learning rate",
        caption=_describe_range("The learning rate", [rate for _, y in points for rate in y]),
        curves=[
            Curve(label=label, role=GROUP_ROLES[group % len(GROUP_ROLES)], kind="line", x=x, y=y)
            for group, (label, (x, y)) in enumerate(zip(labels, points, strict=True))
        ],
    )


def _memory_panel(history: History) -> Iterator[Panel]:
    x, y = envelope([update for update, _ in history.memory], [mib for _, mib in history.memory])
    if len(x) > 1:
        caption = f"{_describe_range('The memory used', y)[:-1]} MiB: on the GPU, or in RAM without a GPU."
        curve = Curve(label="MiB", role="memory", kind="line", x=x, y=y)
        yield Panel(name="memory", title="Memory (MiB)", caption=caption, curves=[curve])


def _loss_panel(history: History, marks: Sequence[int]) -> Panel:
    smoothed = smooth(history.updates.loss, default_span(len(history.updates)))
    curves = _raw_and_smooth("train", "train", history.updates.update, history.updates.loss)
    curves += evaluation_curves(history.evaluations, "loss")
    finite = [y for y in smoothed if math.isfinite(y)]
    ends = [f"train {format_float(finite[-1])} (smoothed)"] if finite else []
    ends += [f"{curve.label} {format_float(curve.y[-1])}" for curve in curves[2:] if curve.y]
    best = best_point(history.evaluations, "loss")
    best_caption = f"; at the best evaluation {format_float(best[1])}, update {best[0]:.0f}" if best else ""
    return Panel(
        name="loss",
        title="Loss",
        caption=f"At the end: {', '.join(ends)}{best_caption}." if ends else "No loss was finite.",
        curves=curves,
        log=values_suit_log_scale(smoothed),
        marks=marks,
        best=best,
    )


def _metric_panels(history: History) -> Iterator[Panel]:
    names = dict.fromkeys(name for evaluation in history.evaluations for name in evaluation.metrics if name != "loss")
    for name in names:
        curves = evaluation_curves(history.evaluations, name)
        ends = ", ".join(f"{curve.label} {format_float(curve.y[-1])}" for curve in curves if curve.y)
        title = metric_title(name)
        caption = f"{title} at the end: {ends or 'not finite'}."
        best = best_point(history.evaluations, name)
        yield Panel(name=f"metric_{name}", title=title, caption=caption, curves=curves, best=best)


def _speed_panels(history: History) -> Iterator[Panel]:
    updates, xs = history.updates, history.updates.update
    speeds = [n / s if s > 0 else math.nan for n, s in zip(updates.examples, updates.total_s, strict=True)]
    total_s = sum(updates.total_s)
    mean = sum(updates.examples) / total_s if total_s > 0 else 0.0
    yield Panel(
        name="throughput",
        title="Examples per second",
        caption=f"On average {format_float(mean)} examples per second of training.",
        curves=_raw_and_smooth("examples/s", "speed", xs, speeds),
    )
    shares = [100 * w / s if s > 0 else math.nan for w, s in zip(updates.wait_s, updates.total_s, strict=True)]
    share = 100 * sum(updates.wait_s) / total_s if total_s > 0 else 0.0
    yield Panel(
        name="waiting",
        title="Time spent waiting for data",
        caption=f"{format_float(share)} % of the training time was spent waiting for data.",
        curves=_raw_and_smooth("share", "wait", xs, shares),
        percent=True,
    )


def _raw_and_smooth(label: str, role: Role, xs: Sequence[int], ys: Sequence[float]) -> list[Curve]:
    raw, line = envelope(xs, ys), envelope(xs, smooth(ys, default_span(len(ys))))
    return [
        Curve(label=f"{label}, each update", role=role, kind="raw", x=raw[0], y=raw[1]),
        Curve(label=label, role=role, kind="line", x=line[0], y=line[1]),
    ]


def metric_title(name: str) -> str:
    """Return the title of a metric: "Top 5 accuracy" for "top_5_accuracy"."""
    title = name.replace("_", " ")
    return title[:1].upper() + title[1:]


def evaluation_curves(evaluations: Sequence[Evaluated], name: str, max_points: int = MAX_POINTS) -> list[Curve]:
    """Return one curve of a metric per split."""
    curves: list[Curve] = []
    roles: dict[str, Role] = {"val": "val", "test": "test"}
    for split in dict.fromkeys(evaluation.split for evaluation in evaluations):
        rows = [evaluation for evaluation in evaluations if evaluation.split == split and name in evaluation.metrics]
        x, y = envelope([row.update for row in rows], [row.metrics[name] for row in rows], max_points)
        curves.append(Curve(label=split, role=roles.get(split, "train"), kind="points", x=x, y=y))
    return curves


def best_point(evaluations: Sequence[Evaluated], name: str) -> tuple[float, float] | None:
    """Return update and value of a metric at the best evaluation; None if that value is missing or not finite."""
    best = best_evaluation(evaluations)
    value = best.metrics.get(name, math.nan) if best else math.nan
    return (best.update, value) if best and math.isfinite(value) else None


def _describe_range(subject: str, ys: Sequence[float]) -> str:
    finite = [y for y in ys if math.isfinite(y)]
    return (
        f"{subject} was between {format_float(min(finite))} and {format_float(max(finite))}."
        if finite
        else f"{subject} is not known."
    )


def subsample_marks(updates: Iterable[int]) -> list[int]:
    """Return between `MAX_MARKS` and twice as many of the updates, or all if there are fewer."""
    numbers = list(updates)
    return numbers[:: max(1, len(numbers) // MAX_MARKS)]
