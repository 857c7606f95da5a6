"""Build panels with the curves of several runs: one panel per metric, one colour per run."""

import math
from collections.abc import Iterator, Mapping, Sequence

from trueloop.core.formatting import format_float
from trueloop.runs.history import History
from trueloop.runs.panels import Curve, Kind, Panel
from trueloop.runs.queries.overview import metric_points
from trueloop.runs.series import default_span, envelope, smooth

Series = tuple[Sequence[float], Sequence[float]]
"""Updates and values."""


def overlay_panels(histories: Mapping[str, History]) -> list[Panel]:
    """Build the panels of several runs: training loss, every metric, learning rate, gradient norm and speed.

    Args:
        histories: histories by the label of each run.

    Returns:
        The panels that are not empty; `Curve.run` is the index of a curve's run.
    """
    return [panel for panel in _all_panels(histories) if panel.curves]


def _all_panels(histories: Mapping[str, History]) -> Iterator[Panel]:
    trained = {label: _smoothed(history, history.updates.loss) for label, history in histories.items()}
    yield _panel("train_loss", "Training loss, smoothed", "line", trained)
    measured = {label: metric_points(history.evaluations) for label, history in histories.items()}
    for metric in dict.fromkeys(name for each in measured.values() for name in each):
        values = {
            label: ([p.update for p in found], [p.value for p in found])
            for label, each in measured.items()
            for found in [each.get(metric, [])]
        }
        yield _panel(f"metric_{metric}", metric, "points", values)
    rates = {label: (history.updates.update, history.updates.lr) for label, history in histories.items()}
    yield _panel("lr", "Learning rate", "line", rates)
    norms = {label: _smoothed(history, history.updates.grad_norm) for label, history in histories.items()}
    yield _panel("grad_norm", "Gradient norm, smoothed", "line", norms, log=True)
    speeds = {label: _smoothed(history, _speed(history)) for label, history in histories.items()}
    yield _panel("throughput", "Examples per second", "line", speeds)


def _panel(name: str, title: str, kind: Kind, series: Mapping[str, Series], *, log: bool = False) -> Panel:
    curves: list[Curve] = []
    log = log or ("loss" in name and _suits_log_scale(series))
    for run, (label, (xs, ys)) in enumerate(series.items()):  # a run without values still uses up its colour
        drawn = [y if y > 0 else math.nan for y in ys] if log else ys  # a log axis cannot show 0
        x, y = envelope(xs, drawn)
        if y:
            curves.append(Curve(label=label, role="train", kind=kind, x=x, y=y, run=run))
    ends = ", ".join(f"{curve.label} {format_float(curve.y[-1])}" for curve in curves)
    return Panel(name=name, title=title, caption=f"At the end: {ends or 'nothing finite'}.", curves=curves, log=log)


def _suits_log_scale(series: Mapping[str, Series]) -> bool:
    """True if a linear axis would show the last losses as zero."""
    finite = [y for _, ys in series.values() for y in ys if math.isfinite(y)]
    return bool(finite) and min(finite) > 0 and max(finite) > 30 * min(finite)


def _smoothed(history: History, ys: Sequence[float]) -> Series:
    return history.updates.update, smooth(ys, default_span(len(ys)))


def _speed(history: History) -> list[float]:
    updates = history.updates
    return [n / s if s > 0 else math.nan for n, s in zip(updates.examples, updates.total_s, strict=True)]
