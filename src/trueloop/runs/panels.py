"""Build the plots of a run as data, for different renderers."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from trueloop.core.formatting import format_float
from trueloop.runs.history import History
from trueloop.runs.series import default_span, envelope, smooth

Kind = Literal["raw", "line", "points"]
Role = Literal["train", "val", "test", "rate", "norm", "speed", "wait", "memory"]
GROUP_ROLES: tuple[Role, ...] = ("rate", "val", "norm", "wait", "train", "test")
"""Colour roles of parameter groups with different learning rates; the eighth group has the role of the first again."""
MAX_MARKS = 200  # number of skipped updates to draw; more are subsampled


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One series of a panel, already downsampled."""

    label: str
    role: Role
    """What the series measures, which decides the colour."""
    kind: Kind
    """Style: raw = pale line in the background; line; points = line with a marker on every value."""
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
    """Updates that were skipped."""
    best: tuple[float, float] | None = None
    """Update and value of the best evaluation; None if that evaluation does not have the metric of this panel."""


def build_panels(history: History) -> list[Panel]:
    """Build the panels of a run: loss, each other metric, learning rate, gradient norm, speed, waiting, memory."""
    return [panel for panel in _all_panels(history) if any(curve.y for curve in panel.curves)]


def _all_panels(history: History) -> Iterator[Panel]:
    updates, at = history.updates, history.updates.update
    marks = _subsample(history.skipped)
    yield _loss_panel(history, marks)
    yield from _metric_panels(history)
    yield _rate_panel(history)
    positive = [norm if norm > 0 else math.nan for norm in updates.grad_norm]  # a log axis cannot show 0
    skipped = f"; {len(history.skipped)} not finite and skipped, marked below" if marks else ""
    yield Panel(
        name="grad_norm",
        title="Gradient norm",
        caption=f"{_describe_range('The gradient norm before clipping', positive)[:-1]}{skipped}.",
        curves=_raw_and_smooth("norm", "norm", at, positive),
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
        caption = f"{_describe_range('The memory used', y)[:-1]} MiB: tensors on the GPU, else the process."
        curve = Curve(label="MiB", role="memory", kind="line", x=x, y=y)
        yield Panel(name="memory", title="Memory (MiB)", caption=caption, curves=[curve])


def _loss_panel(history: History, marks: Sequence[int]) -> Panel:
    smoothed = smooth(history.updates.loss, default_span(len(history.updates)))
    curves = _raw_and_smooth("train", "train", history.updates.update, history.updates.loss)
    curves += _evaluation_curves(history, "loss")
    finite = [y for y in smoothed if math.isfinite(y)]
    ends = [f"train {format_float(finite[-1])} (smoothed)"] if finite else []
    ends += [f"{curve.label} {format_float(curve.y[-1])}" for curve in curves[2:] if curve.y]
    best = _best_point(history, "loss")
    best_caption = f"; at the best evaluation {format_float(best[1])}, update {best[0]:.0f}" if best else ""
    return Panel(
        name="loss",
        title="Loss",
        caption=f"At the end: {', '.join(ends)}{best_caption}." if ends else "No loss was finite.",
        curves=curves,
        log=bool(finite) and min(finite) > 0 and max(finite) > 30 * min(finite),
        marks=marks,
        best=best,
    )


def _metric_panels(history: History) -> Iterator[Panel]:
    names = dict.fromkeys(name for each in history.evaluations for name in each.metrics if name != "loss")
    for name in names:
        curves = _evaluation_curves(history, name)
        ends = ", ".join(f"{curve.label} {format_float(curve.y[-1])}" for curve in curves if curve.y)
        title = name.replace("_", " ")
        caption = f"{title[:1].upper()}{title[1:]} at the end: {ends or 'not finite'}."
        best = _best_point(history, name)
        yield Panel(
            name=f"metric_{name}", title=title[:1].upper() + title[1:], caption=caption, curves=curves, best=best
        )


def _speed_panels(history: History) -> Iterator[Panel]:
    updates, at = history.updates, history.updates.update
    total = list(updates.total_s)
    rates = [n / s if s > 0 else math.nan for n, s in zip(updates.examples, total, strict=True)]
    mean = sum(updates.examples) / sum(total) if sum(total) > 0 else 0.0
    yield Panel(
        name="throughput",
        title="Examples per second",
        caption=f"On average {format_float(mean)} examples per second of training.",
        curves=_raw_and_smooth("examples/s", "speed", at, rates),
    )
    shares = [100 * w / s if s > 0 else math.nan for w, s in zip(updates.wait_s, total, strict=True)]
    share = 100 * sum(updates.wait_s) / sum(total) if sum(total) > 0 else 0.0
    yield Panel(
        name="waiting",
        title="Time spent waiting for data",
        caption=f"{format_float(share)} % of the training time was spent waiting for data.",
        curves=_raw_and_smooth("share", "wait", at, shares),
        percent=True,
    )


def _raw_and_smooth(label: str, role: Role, xs: Sequence[int], ys: Sequence[float]) -> list[Curve]:
    raw, line = envelope(xs, ys), envelope(xs, smooth(ys, default_span(len(ys))))
    return [
        Curve(label=f"{label}, each update", role=role, kind="raw", x=raw[0], y=raw[1]),
        Curve(label=label, role=role, kind="line", x=line[0], y=line[1]),
    ]


def _evaluation_curves(history: History, name: str) -> list[Curve]:
    curves: list[Curve] = []
    roles: dict[str, Role] = {"val": "val", "test": "test"}
    for split in dict.fromkeys(each.split for each in history.evaluations):
        rows = [each for each in history.evaluations if each.split == split and name in each.metrics]
        x, y = envelope([each.update for each in rows], [each.metrics[name] for each in rows])
        curves.append(Curve(label=split, role=roles.get(split, "train"), kind="points", x=x, y=y))
    return curves


def _best_point(history: History, name: str) -> tuple[float, float] | None:
    best = history.best
    value = best.metrics.get(name, math.nan) if best else math.nan
    return (best.update, value) if best and math.isfinite(value) else None


def _describe_range(what: str, ys: Sequence[float]) -> str:
    finite = [y for y in ys if math.isfinite(y)]
    return (
        f"{what} was between {format_float(min(finite))} and {format_float(max(finite))}."
        if finite
        else f"{what} is not known."
    )


def _subsample(updates: Sequence[int]) -> list[int]:
    return [updates[k] for k in range(0, len(updates), max(1, len(updates) // MAX_MARKS))]
