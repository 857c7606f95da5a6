"""What there is to plot of a run: each panel as data, before anything is drawn."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from trueloop.core.formatting import short
from trueloop.runs.history import History
from trueloop.runs.series import envelope, natural_span, smooth

Kind = Literal["raw", "line", "points"]
Role = Literal["train", "val", "test", "rate", "norm", "speed", "wait", "memory"]
GROUPS: tuple[Role, ...] = ("rate", "val", "norm", "wait", "train", "test")
"""Colours of the parameter groups, where they have rates of their own; a seventh has that of the first."""
MARKS = 200  # skipped updates drawn one by one; beyond, neighbours share a mark


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One series of a panel, thinned already."""

    label: str
    role: Role
    """Decides the colour."""
    kind: Kind
    """raw: pale, behind the rest; line; points: a line with a marker on every value."""
    x: Sequence[float]
    y: Sequence[float]
    run: int | None = None
    """Whose it is, where several runs are drawn; then this decides the colour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One plot."""

    name: str
    """Short and unique: "loss", "grad_norm"."""
    title: str
    caption: str
    """What the plot shows, in a sentence with its numbers; the text for who cannot see it."""
    curves: Sequence[Curve]
    log: bool = False
    percent: bool = False
    marks: Sequence[int] = ()
    """Updates that were skipped."""
    best: tuple[float, float] | None = None
    """The update and value of the best evaluation, where it lies on this panel."""


def panels(history: History) -> list[Panel]:
    """Lay out what a run has to show: loss, each other metric, learning rate, gradient norm, speed, waiting, memory."""
    return [panel for panel in _all(history) if any(curve.y for curve in panel.curves)]


def _all(history: History) -> Iterator[Panel]:
    updates, at = history.updates, history.updates.update
    marks = _thinned(history.skipped)
    yield _loss(history, marks)
    yield from _metrics(history)
    yield _rates(history)
    positive = [norm if norm > 0 else math.nan for norm in updates.grad_norm]  # a log axis has no place for 0
    skipped = f"; {len(history.skipped)} not finite and skipped, marked below" if marks else ""
    yield Panel(
        name="grad_norm",
        title="Gradient norm",
        caption=f"{_between('The gradient norm before clipping', positive)[:-1]}{skipped}.",
        curves=_raw_and_smooth("norm", "norm", at, positive),
        log=True,
        marks=marks,
    )
    yield from _speed(history)
    yield from _memory(history)


def _rates(history: History) -> Panel:
    groups = history.updates.rates
    drawn = [envelope(history.updates.update, rates) for rates in groups]
    labels = [f"group {place}" for place in range(len(groups))] if len(groups) > 1 else ["learning rate"]
    return Panel(
        name="lr",
        title="Learning rate",
        caption=_between("The learning rate", [rate for _, y in drawn for rate in y]),
        curves=[
            Curve(label=label, role=GROUPS[place % len(GROUPS)], kind="line", x=x, y=y)
            for place, (label, (x, y)) in enumerate(zip(labels, drawn, strict=True))
        ],
    )


def _memory(history: History) -> Iterator[Panel]:
    x, y = envelope([update for update, _ in history.memory], [mib for _, mib in history.memory])
    if len(x) > 1:
        caption = f"{_between('The memory taken', y)[:-1]} MiB: tensors on the GPU, else the process."
        curve = Curve(label="MiB", role="memory", kind="line", x=x, y=y)
        yield Panel(name="memory", title="Memory (MiB)", caption=caption, curves=[curve])


def _loss(history: History, marks: Sequence[int]) -> Panel:
    smoothed = smooth(history.updates.loss, natural_span(len(history.updates)))
    curves = _raw_and_smooth("train", "train", history.updates.update, history.updates.loss)
    curves += _evaluated(history, "loss")
    finite = [y for y in smoothed if math.isfinite(y)]
    ends = [f"train {short(finite[-1])} (smoothed)"] if finite else []
    ends += [f"{curve.label} {short(curve.y[-1])}" for curve in curves[2:] if curve.y]
    best = _best(history, "loss")
    best_told = f"; at the best evaluation {short(best[1])}, update {best[0]:.0f}" if best else ""
    return Panel(
        name="loss",
        title="Loss",
        caption=f"At the end: {', '.join(ends)}{best_told}." if ends else "No loss was finite.",
        curves=curves,
        log=bool(finite) and min(finite) > 0 and max(finite) > 30 * min(finite),
        marks=marks,
        best=best,
    )


def _metrics(history: History) -> Iterator[Panel]:
    names = dict.fromkeys(name for each in history.evaluations for name in each.metrics if name != "loss")
    for name in names:
        curves = _evaluated(history, name)
        ends = ", ".join(f"{curve.label} {short(curve.y[-1])}" for curve in curves if curve.y)
        title = name.replace("_", " ")
        caption = f"{title[:1].upper()}{title[1:]} at the end: {ends or 'not finite'}."
        best = _best(history, name)
        yield Panel(
            name=f"metric_{name}", title=title[:1].upper() + title[1:], caption=caption, curves=curves, best=best
        )


def _speed(history: History) -> Iterator[Panel]:
    updates, at = history.updates, history.updates.update
    total = list(updates.total_s)
    rates = [n / s if s > 0 else math.nan for n, s in zip(updates.examples, total, strict=True)]
    mean = sum(updates.examples) / sum(total) if sum(total) > 0 else 0.0
    yield Panel(
        name="throughput",
        title="Examples per second",
        caption=f"On average {short(mean)} examples per second of training.",
        curves=_raw_and_smooth("examples/s", "speed", at, rates),
    )
    shares = [100 * w / s if s > 0 else math.nan for w, s in zip(updates.wait_s, total, strict=True)]
    share = 100 * sum(updates.wait_s) / sum(total) if sum(total) > 0 else 0.0
    yield Panel(
        name="waiting",
        title="Time spent waiting for data",
        caption=f"{short(share)} % of the training time went into waiting for data.",
        curves=_raw_and_smooth("share", "wait", at, shares),
        percent=True,
    )


def _raw_and_smooth(label: str, role: Role, xs: Sequence[int], ys: Sequence[float]) -> list[Curve]:
    raw, line = envelope(xs, ys), envelope(xs, smooth(ys, natural_span(len(ys))))
    return [
        Curve(label=f"{label}, each update", role=role, kind="raw", x=raw[0], y=raw[1]),
        Curve(label=label, role=role, kind="line", x=line[0], y=line[1]),
    ]


def _evaluated(history: History, name: str) -> list[Curve]:
    curves: list[Curve] = []
    roles: dict[str, Role] = {"val": "val", "test": "test"}
    for split in dict.fromkeys(each.split for each in history.evaluations):
        rows = [each for each in history.evaluations if each.split == split and name in each.metrics]
        x, y = envelope([each.update for each in rows], [each.metrics[name] for each in rows])
        curves.append(Curve(label=split, role=roles.get(split, "train"), kind="points", x=x, y=y))
    return curves


def _best(history: History, name: str) -> tuple[float, float] | None:
    best = history.best
    value = best.metrics.get(name, math.nan) if best else math.nan
    return (best.update, value) if best and math.isfinite(value) else None


def _between(what: str, ys: Sequence[float]) -> str:
    finite = [y for y in ys if math.isfinite(y)]
    return f"{what} lay between {short(min(finite))} and {short(max(finite))}." if finite else f"{what} is not known."


def _thinned(updates: Sequence[int]) -> list[int]:
    return [updates[k] for k in range(0, len(updates), max(1, len(updates) // MARKS))]
