"""Record the signature of a silent failure: curves of the correct teaching script and of its copy with one failure.

Both scripts run from the same seeds. A curve is reduced to as many points as a small plot can show, each with the
minimum, the median and the maximum over the seeds.
"""

from __future__ import annotations

import gc
import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from trueloop.core.axis_ticks import suits_log_scale
from trueloop.core.formatting import format_float
from trueloop.failures.teaching_script import ChangedLine
from trueloop.lab.teaching.inject import Inject, write_script
from trueloop.lab.teaching.simulation import Simulation

if TYPE_CHECKING:
    from trueloop.lab.teaching.script_run import ScriptRun

BASE: Final = Simulation(
    dataset="moons", samples=246, batch=8, accumulation=2, clip=5.0, schedule="cosine", optimizer="momentum",
    learning_rate=0.1, batchnorm=True, dropout=0.1, hidden=(16,), activation="relu", epochs=24,
)  # fmt: skip
"""Settings with what most failures need: short windows, a short last batch, mode-dependent layers, a schedule."""
SEEDS: Final = (0, 1, 2)
POINTS: Final = 52  # maximum number of points of a curve
EDGE: Final = 0.02  # fraction of values that may lie beyond each edge of a plot, so that a spike does not flatten it
FORMAT: Final = 2  # increased whenever recordings of the same scripts would differ, so that cached ones are not used
FLOORS: Final[Mapping[str, float]] = {"memory": 2.0}
"""Minimum of the value by which a difference is divided: a few KiB of the C library's bookkeeping are noise."""
WEIGHTS: Final[Mapping[str, float]] = {"memory": 0.5}
"""Weight of a quantity's difference in the order of the plots: the first run in a process allocates extra memory."""
NOTICEABLE: Final = 0.05  # smallest difference that can be seen in a plot

QUANTITIES: Final[Mapping[str, str]] = {
    "loss": "Training loss",
    "norm": "Gradient norm",
    "rate": "Learning rate",
    "held_out": "Held-out loss",
    "accuracy": "Held-out accuracy",
    "graphs": "Graphs alive",
    "memory": "Memory (MiB)",
}
MAY_BE_LOGARITHMIC: Final = ("loss", "norm", "held_out", "graphs")
"""Quantities whose axis is logarithmic if that suits their values."""


class ScriptPair(NamedTuple):
    """A correct script, and its copy with one failure."""

    simulation: Simulation
    """Settings of both scripts: `BASE` with the changes that the failure needs."""
    healthy: str
    broken: str
    lines: Sequence[ChangedLine]
    """Lines of the broken script that differ."""

    def key(self, *versions: str) -> str:
        """Return a cache key of the curves: a hash of both scripts, the seeds and the given versions."""
        data = "\0".join([self.healthy, self.broken, str(SEEDS), str(POINTS), str(FORMAT), *versions])
        return hashlib.sha256(data.encode()).hexdigest()[:40]


def write_pair(inject: Inject, seed: int = 0, *, epochs: int | None = None) -> ScriptPair:
    """Write both scripts.

    Args:
        inject: adds the failure to the script.
        seed: seed of both scripts.
        epochs: epochs of both scripts; None = those of `BASE`.

    Raises:
        CannotInject: the failure cannot be injected into the script.
    """
    loop, simulation = write_script(replace(BASE, seed=seed, epochs=epochs or BASE.epochs), [inject])
    healthy = write_script(simulation, []).loop
    return ScriptPair(simulation, healthy.text(), loop.text(), loop.changed_lines())


@dataclass(slots=True, kw_only=True)
class Recording:
    """One run of one script: for each quantity, its values and the updates at which they were read."""

    curves: dict[str, tuple[list[int], list[float]]] = field(
        default_factory=lambda: {name: ([], []) for name in QUANTITIES}
    )
    raised: str = ""
    """The error that ended the script; empty if there was none."""

    def add(self, quantity: str, update: int, value: float) -> None:
        """Append one value."""
        updates, values = self.curves[quantity]
        updates.append(update)
        values.append(float(value))


def parse_recording(data: Mapping[str, Any]) -> Recording:
    """Parse a recording from JSON.

    Raises:
        KeyError, TypeError, ValueError: the data is not a recording.
    """
    curves = {name: data["curves"][name] for name in QUANTITIES}
    return Recording(
        curves={name: (list(updates), list(map(float, values))) for name, (updates, values) in curves.items()},
        raised=str(data["raised"]),
    )


def record(
    text: str,
    simulation: Simulation,
    run_script: Callable[[ScriptRun], None],
    on_batch: Callable[[ScriptRun], None] | None = None,
) -> Recording:
    """Run a script to its end and return its curves.

    Args:
        text: source code of a generated script.
        simulation: settings of the script.
        run_script: calls ``script_run.run()``, for example under the sanitizer.
        on_batch: called before every training batch.
    """
    from trueloop.lab.teaching.program import Program
    from trueloop.lab.teaching.script_run import ScriptRun

    recording = Recording()
    gc.collect()  # garbage of an earlier run must not be freed during this one, while its memory is measured

    def before_batch(script_run: ScriptRun) -> None:
        _record_curves(script_run, recording)  # at every batch: an evaluation gets the update at which it is taken
        recording.add("graphs", script_run.window, script_run.graphs)
        recording.add("memory", script_run.window, max(0.0, script_run.memory_mib()))
        if on_batch is not None:
            on_batch(script_run)

    script_run = ScriptRun(Program(text), before_batch, clip=simulation.clip)
    try:
        run_script(script_run)
    except Exception as error:  # noqa: BLE001 - the error of a broken script belongs to its signature
        recording.raised = f"{type(error).__name__}: {str(error)[:200]}"
    _record_curves(script_run, recording)
    _end_process_group()
    return recording


def _end_process_group() -> None:
    """End the process group of a script that has left it open, so that it does not reach the next script."""
    import torch

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _record_curves(script_run: ScriptRun, recording: Recording) -> None:
    curves = script_run.take_curves()
    for update, loss, norm, rate in zip(curves.update, curves.loss, curves.norm, curves.rate, strict=True):
        for name, value in (("loss", loss), ("norm", norm), ("rate", rate)):
            recording.add(name, update, value)
    for update, loss, accuracy in curves.evaluations:
        recording.add("held_out", update, loss)
        recording.add("accuracy", update, accuracy)


def plots(healthy: Sequence[Recording], broken: Sequence[Recording]) -> list[dict[str, Any]]:
    """Lay out one plot per quantity: the training loss first, the others by how much both scripts differ.

    Args:
        healthy, broken: one recording per seed.

    Returns:
        For each quantity ``name``, ``title``, ``words`` (a description), ``apart`` (0: the same, 1: different orders
        of magnitude), ``log``, ``low`` and ``high`` (values at the lower and upper edge, to which the few values beyond
        are clamped), ``last`` (update at the right edge). For "healthy" and "broken": ``x`` and the minimum ``least``,
        median ``middle`` and maximum ``most`` over the seeds, as coordinates from 0 to 1; ``lost``: the first update
        with a non-finite value, or None.
    """
    all_plots = [_plot(name, title, healthy, broken) for name, title in QUANTITIES.items()]
    drawn = [plot for plot in all_plots if plot is not None]
    return sorted(drawn, key=lambda plot: (plot["name"] != "loss", -_weighted_difference(plot)))


def most_different(drawn: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the plot in which both scripts differ most; the first one, the loss, if none differs noticeably."""
    plot = max(drawn, key=_weighted_difference)
    return plot if _weighted_difference(plot) > NOTICEABLE else drawn[0]


def _weighted_difference(plot: Mapping[str, Any]) -> float:
    return WEIGHTS.get(plot["name"], 1.0) * plot["apart"]


class _Band(NamedTuple):
    """Several runs of one script at common updates; a value is None if no run has a finite value there."""

    updates: list[float]
    least: list[float | None]
    middle: list[float | None]
    most: list[float | None]
    lost: int | None


def _plot(name: str, title: str, healthy: Sequence[Recording], broken: Sequence[Recording]) -> dict[str, Any] | None:
    bands = {"healthy": _band(name, healthy), "broken": _band(name, broken)}
    values = sorted(value for band in bands.values() for value in (*band.least, *band.most) if value is not None)
    if not values:
        return None
    beyond_edge = int(EDGE * len(values))
    ends = [finite[-1] for band in bands.values() if (finite := [each for each in band.middle if each is not None])]
    low, high = min(values[beyond_edge], *ends), max(values[-1 - beyond_edge], *ends)  # the words give the ends
    last = max(max(band.updates, default=0) for band in bands.values())
    log = name in MAY_BE_LOGARITHMIC and suits_log_scale(low, high)

    def coordinate(value: float | None) -> float | None:
        if value is None:
            return None
        if high <= low:
            return 0.5
        clamped = min(high, max(low, value))
        y = math.log(clamped / low) / math.log(high / low) if log else (clamped - low) / (high - low)
        return round(y, 4)

    coordinates = {
        version: {
            "x": [round(update / max(1.0, last), 4) for update in band.updates],
            "least": list(map(coordinate, band.least)),
            "middle": list(map(coordinate, band.middle)),
            "most": list(map(coordinate, band.most)),
            "lost": band.lost,
        }
        for version, band in bands.items()
    }
    difference = _difference(bands["healthy"], bands["broken"], FLOORS.get(name, 0.0))
    words = _describe(bands, difference)
    data = {"name": name, "title": title, "words": words, "apart": round(difference, 4), "log": log}
    return {**data, "low": low, "high": high, "last": round(last), **coordinates}


def _band(name: str, recordings: Sequence[Recording]) -> _Band:
    binned = [_bin_curve(*recording.curves[name]) for recording in recordings]
    count = min((len(each) for each in binned), default=0)
    updates = [binned[0][i][0] for i in range(count)]
    finite = [[value for each in binned if math.isfinite(value := each[i][1])] for i in range(count)]
    non_finite_updates = [
        update
        for recording in recordings
        for update, value in zip(*recording.curves[name], strict=True)
        if not math.isfinite(value)
    ]
    return _Band(
        updates,
        [min(values, default=None) for values in finite],
        [median(values) if values else None for values in finite],
        [max(values, default=None) for values in finite],
        min(non_finite_updates, default=None),
    )


def _bin_curve(updates: Sequence[int], values: Sequence[float]) -> list[tuple[float, float]]:
    """Average neighbours to at most `POINTS` points; nan if none of the averaged values is finite."""
    count = len(values)
    bins = min(POINTS, count)
    points: list[tuple[float, float]] = []
    for index in range(bins):
        start, end = count * index // bins, count * (index + 1) // bins
        finite = [value for value in values[start:end] if math.isfinite(value)]
        points.append((updates[end - 1], sum(finite) / len(finite) if finite else math.nan))
    return points


def _difference(healthy: _Band, broken: _Band, floor: float) -> float:
    """Return the mean relative difference of the medians, less the spread of the healthy seeds."""
    differences: list[float] = []
    for index in range(min(len(healthy.middle), len(broken.middle))):
        healthy_median, broken_median = healthy.middle[index], broken.middle[index]
        if healthy_median is None or broken_median is None:
            differences.append(float(healthy_median is not broken_median))
            continue
        scale = max(abs(healthy_median) + abs(broken_median), floor)
        spread = max((healthy.most[index] or 0) - (healthy.least[index] or 0), 0.0)
        differences.append(max(0.0, abs(healthy_median - broken_median) - spread) / scale if scale else 0.0)
    return sum(differences) / len(differences) if differences else 0.0


def _describe(bands: Mapping[str, _Band], difference: float) -> str:
    final_values: dict[str, str] = {}
    for version, band in bands.items():
        finite = [value for value in band.middle if value is not None]
        final_values[version] = format_float(finite[-1]) if finite else "no finite value"
        if band.lost is not None:
            final_values[version] += f", not finite from update {band.lost} on"
    remark = " They differ no more than two seeds do." if not difference else ""
    if bands["healthy"] == bands["broken"]:
        remark = " The same to the last digit."
    return f"At the end: healthy {final_values['healthy']}, broken {final_values['broken']}.{remark}"
