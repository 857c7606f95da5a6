"""Film a twin run: curves and decision planes of the correct teaching script and of its copy with one failure."""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from trueloop.core.axis_ticks import suits_log_scale
from trueloop.lab.teaching.inject import Inject, write_script
from trueloop.lab.teaching.signatures import BASE, MAY_BE_LOGARITHMIC, QUANTITIES, ScriptPair, record

if TYPE_CHECKING:
    from trueloop.lab.teaching.script_run import ScriptRun

SETTINGS: Final = replace(BASE, epochs=14)
"""Settings of a filmed run: short, so that a film is ready after a second or two."""
SHOWN: Final = ("loss", "norm", "accuracy", "rate", "held_out", "graphs")
"""The quantities of a film. Memory is left out: another run in the same process may change it."""
UPDATES_PER_PICTURE: Final = 6
THINNING: Final = 2  # every second pixel of a decision plane, in both directions
EDGE: Final = 0.02  # fraction of values that may lie beyond each edge of a chart, so that a spike does not flatten it
DIGITS: Final = 4  # significant digits of a value: more than a screen can show


def write_film_scripts(inject: Inject) -> ScriptPair:
    """Write the correct and the broken script of a film.

    Raises:
        CannotInject: the failure cannot be injected into the script.
    """
    loop, simulation = write_script(SETTINGS, [inject])
    return ScriptPair(simulation, write_script(simulation, []).loop.text(), loop.text(), loop.changed_lines())


def join_runs(scripts: ScriptPair, healthy: Mapping[str, Any], broken: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a film shows.

    Returns:
        "updates" (the last of both runs), "classes", "charts" (for each quantity: "name", "title", "log", "low",
        "high"), and both runs as "healthy" and "broken".
    """
    runs = {"healthy": healthy, "broken": broken}
    charts = [chart for name in SHOWN if (chart := _chart(name, runs)) is not None]
    updates = max(run["updates"] for run in runs.values())
    return {"updates": updates, "classes": scripts.simulation.classes, "charts": charts, **runs}


def film_run(text: str, scripts: ScriptPair) -> dict[str, Any]:
    """Run one of the scripts.

    Returns:
        "curves" (for each quantity: updates and values), "pictures" (update and plane, as in `decision_planes`, in
        base64; the pictures have "side" pixels in a row), "steps", "points" ([x, y, class] of each training point),
        "span" (half the width of the planes), "updates" and "raised".

    Cost: one run of some hundred updates, without the sanitizer.
    """
    from trueloop.lab.teaching.decision_planes import build_planes

    pictures: list[tuple[int, str]] = []
    seen: dict[str, Any] = {"points": [], "span": 1.0, "steps": 1, "side": 1}

    def take_picture(script_run: ScriptRun, distance: int = UPDATES_PER_PICTURE) -> None:
        if pictures and script_run.window < pictures[-1][0] + distance:
            return
        if not pictures:
            seen.update(points=script_run.points("train_set"), span=script_run.half_width)
        (plane,) = build_planes(script_run.model, script_run.half_width, neurons=False)
        rows = [plane.data[row * plane.width : (row + 1) * plane.width] for row in range(0, plane.height, THINNING)]
        seen.update(steps=plane.steps, side=len(rows))
        pictures.append((script_run.window, b64encode(b"".join(row[::THINNING] for row in rows)).decode()))

    def run(script_run: ScriptRun) -> None:
        script_run.run()
        take_picture(script_run, 1)

    recording = record(text, scripts.simulation, run, take_picture)
    curves = {
        name: (updates, [_rounded(value) for value in values])
        for name, (updates, values) in recording.curves.items()
        if name in SHOWN
    }
    last = max((updates[-1] for updates, _ in curves.values() if updates), default=0)
    return {**seen, "curves": curves, "pictures": pictures, "raised": recording.raised, "updates": last}


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def _chart(name: str, runs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the axis of a quantity; None if it has no finite value."""
    values = sorted(
        value
        for run in runs.values()
        for value in run["curves"][name][1]
        if isinstance(value, float | int) and math.isfinite(value)
    )
    if not values:
        return None
    low, high = _range(values)
    log = name in MAY_BE_LOGARITHMIC and suits_log_scale(low, high)
    return {"name": name, "title": QUANTITIES[name], "log": log, "low": low, "high": high}


def _range(values: Sequence[float]) -> tuple[float, float]:
    beyond = int(EDGE * len(values))
    return values[beyond], values[-1 - beyond]
