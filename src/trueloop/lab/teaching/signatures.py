"""What a silent failure looks like: the curves of the correct teaching script and the same with one operation broken.

Both are really run, from several seeds, by the same numbers otherwise. What is kept is as many points as a small plot
can show: of the seeds the least, the middle and the greatest value at each.
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
    from trueloop.lab.teaching.player import Play

BASE: Final = Simulation(
    dataset="moons", samples=246, batch=8, accumulation=2, clip=5.0, schedule="cosine", optimizer="momentum",
    learning_rate=0.1, batchnorm=True, dropout=0.1, hidden=(16,), activation="relu", epochs=24,
)  # fmt: skip
"""What most failures need is in it: short windows, a short last batch, modes that differ, a schedule."""
SEEDS: Final = (0, 1, 2)
POINTS: Final = 52  # of a curve
EDGE: Final = 0.02  # share of the values that may lie beyond each edge of a plot: one spike is not to flatten the rest
FORMAT: Final = 2
FLOORS: Final[Mapping[str, float]] = {"memory": 2.0}
"""What a value of a quantity must at least be, for a difference to count: the C library's bookkeeping is noise."""
WEIGHTS: Final[Mapping[str, float]] = {"memory": 0.5}
"""Of a distance, where the most telling quantity is looked for: a first run takes memory that later ones find."""

QUANTITIES: Final[Mapping[str, str]] = {
    "loss": "Training loss",
    "norm": "Gradient norm",
    "rate": "Learning rate",
    "held_out": "Held-out loss",
    "accuracy": "Held-out accuracy",
    "graphs": "Graphs alive",
    "memory": "Memory (MiB)",
}


LOGGED: Final = ("loss", "norm", "held_out", "graphs")
"""Quantities that may be drawn by their logarithm."""


class Pair(NamedTuple):
    """A script, and the same with one operation broken."""

    simulation: Simulation
    """What it trains; changed from `BASE` as far as the failure needs it."""
    healthy: str
    broken: str
    lines: Sequence[ChangedLine]
    """Of the broken one, that differ."""

    def key(self, *versions: str) -> str:
        """Return a name for what running both would tell: of their text, the seeds, the versions of who runs them."""
        data = "\0".join([self.healthy, self.broken, str(SEEDS), str(POINTS), str(FORMAT), *versions])
        return hashlib.sha256(data.encode()).hexdigest()[:40]


def pair(inject: Inject, seed: int = 0) -> Pair:
    """Write both scripts.

    Raises:
        CannotInject: the script has nothing that could be broken this way.
    """
    loop, simulation = write_script(replace(BASE, seed=seed), [inject])
    whole = write_script(simulation, []).loop
    return Pair(simulation, whole.text(), loop.text(), loop.changed_lines())


@dataclass(slots=True, kw_only=True)
class Recording:
    """One run of one script: for each quantity the updates it was read at, and its values."""

    curves: dict[str, tuple[list[int], list[float]]] = field(
        default_factory=lambda: {name: ([], []) for name in QUANTITIES}
    )
    raised: str = ""
    """What ended the script before its time, in words."""

    def add(self, quantity: str, update: int, value: float) -> None:
        """Append one value."""
        updates, values = self.curves[quantity]
        updates.append(update)
        values.append(float(value))


def parse_recording(data: Mapping[str, Any]) -> Recording:
    """Parse a recording from JSON.

    Raises:
        KeyError, TypeError, ValueError: they are not those of one.
    """
    curves = {name: data["curves"][name] for name in QUANTITIES}
    return Recording(
        curves={name: (list(updates), list(map(float, values))) for name, (updates, values) in curves.items()},
        raised=str(data["raised"]),
    )


def record(text: str, simulation: Simulation, around: Callable[[Play], None]) -> Recording:
    """Run a script to its end, and return its curves.

    Args:
        text: of a script that we have written.
        simulation: what it was written from.
        around: runs the script: calls ``play.run()``, within whatever the caller wants to have around it.
    """
    from trueloop.lab.teaching.player import Play
    from trueloop.lab.teaching.program import Program

    recorded = Recording()
    gc.collect()  # what an earlier run has left is not to go in the middle of this one, when its memory is read

    def before_batch(play: Play) -> None:
        _take(play, recorded)  # evaluations are noted where they are asked for
        recorded.add("graphs", play.update, play.graphs)
        recorded.add("memory", play.update, max(0.0, play.memory_mib()))

    play = Play(Program(text), before_batch, clip=simulation.clip)
    try:
        around(play)
    except Exception as error:  # noqa: BLE001 - what a broken script raises is a part of its signature
        recorded.raised = f"{type(error).__name__}: {str(error)[:200]}"
    _take(play, recorded)
    return recorded


def _take(play: Play, recording: Recording) -> None:
    taken = play.take()
    for update, loss, norm, rate in zip(taken.update, taken.loss, taken.norm, taken.rate, strict=True):
        for name, value in (("loss", loss), ("norm", norm), ("rate", rate)):
            recording.add(name, update, value)
    for update, loss, accuracy in taken.evaluations:
        recording.add("held_out", update, loss)
        recording.add("accuracy", update, accuracy)


def plots(healthy: Sequence[Recording], broken: Sequence[Recording]) -> list[dict[str, Any]]:
    """Lay out each quantity for drawing, the training loss first, then by how far the two differ.

    Args:
        healthy, broken: one for each seed.

    Returns:
        For each quantity ``name``, ``title``, ``words`` (what is to be seen, for people), ``apart`` (0: the same, 1:
        of other orders of magnitude), ``log``, ``low`` and ``high`` (values at the lower and upper edge; the few beyond
        are drawn there), ``last`` (update at the right edge), and for "healthy" and "broken" ``x`` and, for the seeds,
        ``least``, ``middle``, ``most``: all places from 0 to 1; ``lost``: the first update with a value that is not
        finite, or None.
    """
    laid = [_plot(name, title, healthy, broken) for name, title in QUANTITIES.items()]
    drawn = [each for each in laid if each is not None]
    return sorted(drawn, key=lambda each: (each["name"] != "loss", -WEIGHTS.get(each["name"], 1.0) * each["apart"]))


class _Band(NamedTuple):
    """Some runs of one script at common updates; a value is None where none of them was finite."""

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
    beyond = int(EDGE * len(values))
    low, high = values[beyond], values[-1 - beyond]
    last = max(max(band.updates, default=0) for band in bands.values())
    log = name in LOGGED and suits_log_scale(low, high)

    def place(value: float | None) -> float | None:
        if value is None:
            return None
        if high <= low:
            return 0.5
        inside = min(high, max(low, value))
        share = math.log(inside / low) / math.log(high / low) if log else (inside - low) / (high - low)
        return round(share, 4)

    drawn = {
        which: {
            "x": [round(update / max(1.0, last), 4) for update in band.updates],
            "least": list(map(place, band.least)),
            "middle": list(map(place, band.middle)),
            "most": list(map(place, band.most)),
            "lost": band.lost,
        }
        for which, band in bands.items()
    }
    apart = _apart(bands["healthy"], bands["broken"], FLOORS.get(name, 0.0))
    data = {"name": name, "title": title, "words": _words(bands, apart), "apart": round(apart, 4), "log": log}
    return {**data, "low": low, "high": high, "last": round(last), **drawn}


def _band(name: str, recordings: Sequence[Recording]) -> _Band:
    binned = [_binned(*recording.curves[name]) for recording in recordings]
    count = min((len(each) for each in binned), default=0)
    updates = [binned[0][place][0] for place in range(count)]
    finite = [
        [value for each in binned if math.isfinite(value := each[place][1])] for place in range(count)
    ]  # at each place, of the seeds
    lost = [
        update
        for recording in recordings
        for update, value in zip(*recording.curves[name], strict=True)
        if not math.isfinite(value)
    ]
    return _Band(
        updates,
        [min(some, default=None) for some in finite],
        [median(some) if some else None for some in finite],
        [max(some, default=None) for some in finite],
        min(lost, default=None),
    )


def _binned(updates: Sequence[int], values: Sequence[float]) -> list[tuple[float, float]]:
    """Average neighbours, so that at most `POINTS` are left; nan where none of them is finite."""
    count = len(values)
    bins = min(POINTS, count)
    points: list[tuple[float, float]] = []
    for place in range(bins):
        start, end = count * place // bins, count * (place + 1) // bins
        finite = [value for value in values[start:end] if math.isfinite(value)]
        points.append((updates[end - 1], sum(finite) / len(finite) if finite else math.nan))
    return points


def _apart(healthy: _Band, broken: _Band, floor: float) -> float:
    """Say how far two bands are apart: by the distance of their middles, where that is more than the seeds differ."""
    differences: list[float] = []
    for place in range(min(len(healthy.middle), len(broken.middle))):
        first, second = healthy.middle[place], broken.middle[place]
        if first is None or second is None:
            differences.append(float(first is not second))
            continue
        size = max(abs(first) + abs(second), floor)
        spread = max((healthy.most[place] or 0) - (healthy.least[place] or 0), 0.0)
        differences.append(max(0.0, abs(first - second) - spread) / size if size else 0.0)
    return sum(differences) / len(differences) if differences else 0.0


def _words(bands: Mapping[str, _Band], apart: float) -> str:
    ends: dict[str, str] = {}
    for which, band in bands.items():
        finite = [value for value in band.middle if value is not None]
        ends[which] = format_float(finite[-1]) if finite else "nothing finite"
        if band.lost is not None:
            ends[which] += f", not finite from update {band.lost} on"
    same = " No more apart than two seeds are." if not apart else ""
    if bands["healthy"] == bands["broken"]:
        same = " The same to the last digit."
    return f"At the end: healthy {ends['healthy']}, broken {ends['broken']}.{same}"
