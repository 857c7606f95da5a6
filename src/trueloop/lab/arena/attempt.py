"""One job, in a process of its own: the entry's script under the watch, the same again for its weights and its time.

It is `trueloop run` on the text that anybody can copy: there is no other way into the arena.
"""

from __future__ import annotations

import hashlib
import sys
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from trueloop.core.findings import Severity
from trueloop.core.formatting import to_single_line
from trueloop.failures.selection import FailureSelection
from trueloop.lab.arena.script import write_reference_script, write_script
from trueloop.lab.arena.tracks import find_track
from trueloop.lab.arena.trial import End, Found, Job, Point, Trial
from trueloop.sanitizer.launch import FINDINGS_EXIT_CODE, LaunchResult, launch
from trueloop.sanitizer.run_program import ProgramCommand, run_program

if TYPE_CHECKING:
    from torch import nn

POLL_INTERVAL_S: Final = 0.05
"""Between two looks at the curve of a run that goes on."""
MAX_TIMED_RUNS: Final = 5
"""Times that a run is timed at most: some are over before a coarse clock of the CPU's time has moved much."""
MIN_TIMED_S: Final = 0.08
"""Seconds of training, over all turns, after which it is timed no more."""

CurveCallback = Callable[[list[Point]], None]
"""Hears the points of the curve that are new, and of none at all when it has ended and is run once more."""


def run_job(job: Job, folder: Path, tell: CurveCallback, trouble: Callable[[], str]) -> Trial:
    """Run one job to its end.

    Args:
        job: what to run.
        folder: where its script may lie.
        tell: hears the curve of the watched run.
        trouble: what was printed on standard error last.
    """
    track = find_track(job.track)
    path = folder / f"{job.track}.py"
    path.write_text(write_script(track, job.entry, job.seed, practice=job.practice), encoding="utf-8")
    with _curve_reported(tell):
        launched = launch(ProgramCommand(target=str(path)), FailureSelection(), stop_on_error=True)
    trial = _judge_run(job.seed, launched, trouble)
    if job.once or trial.end != End.REACHED:
        return trial
    tell([])
    beside = folder / "reference.py"
    beside.write_text(write_reference_script(track, job.seed), encoding="utf-8")
    times, names = _time_against_reference(path, beside)
    if (names["reached"], _weights_digest(names["model"])) != (trial.updates, trial.digest):
        return replace(trial, end=End.FAILED.value, why="The same script came to other weights the second time.")
    return replace(trial, time=times)


def _judge_run(seed: int, launched: LaunchResult, trouble: Callable[[], str]) -> Trial:
    names = vars(sys.modules["__main__"])
    curve = cast("list[Point]", names.get("curve", []))
    update, examples, accuracy = curve[-1] if curve else (0, 0, 0.0)
    trial = Trial(seed=seed, end="failed", updates=update, examples=examples, accuracy=accuracy)
    guilty = [finding for finding in launched.report.findings if finding.severity != Severity.NOTE]
    if guilty:
        worst = guilty[0]
        return replace(
            trial,
            end=End.FOUND.value,
            found=Found(
                code=worst.code,
                title=to_single_line(worst.title),
                severity=worst.severity,
                message=to_single_line(worst.message),
                line=worst.location.line if worst.location else 0,
                fix=to_single_line(worst.fix),
            ),
        )
    if launched.nothing or launched.report.problems:
        return replace(
            trial, why=launched.nothing or f"It was not watched in full: {to_single_line(launched.report.problems[0])}"
        )
    if launched.code not in (0, FINDINGS_EXIT_CODE):
        return replace(trial, why=f"It ended with exit code {launched.code}: {to_single_line(trouble())}")
    end = End.REACHED if names["reached"] else End.NOT_REACHED
    return replace(trial, end=end.value, digest=_weights_digest(names["model"]))


def _time_against_reference(path: Path, beside: Path) -> tuple[float | None, Mapping[str, Any]]:
    """Run a script unwatched, in turns with another one; return the ratio of their times per example, and its names.

    The ratio is None where the clock of the CPU's time did not move.
    """
    seconds, examples = dict.fromkeys((beside, path), 0.0), dict.fromkeys((beside, path), 0)
    names: Mapping[str, Any] = {}
    for turn in range(MAX_TIMED_RUNS):
        for each in (beside, path):
            if turn == 0 or seconds[each] < MIN_TIMED_S:
                run_program(ProgramCommand(target=str(each)))
                ran = vars(sys.modules["__main__"])
                seconds[each] += ran["train_s"]
                examples[each] += ran["examples"]
                names = ran if each == path else names
    if not seconds[beside]:
        return None, names
    return (seconds[path] / examples[path]) / (seconds[beside] / examples[beside]), names


def _weights_digest(model: nn.Module) -> str:
    """Name the weights: equal for equal bits."""
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()[:32]


@contextmanager
def _curve_reported(tell: CurveCallback) -> Generator[None]:
    """Look at the script's own curve now and then; its thread trains, and hears nothing of it."""
    ended = threading.Event()
    told = 0
    of: Any = None

    def look() -> None:
        nonlocal told, of
        curve = vars(sys.modules["__main__"]).get("curve")
        if curve is not of:
            told, of = 0, curve
        if curve and len(curve) > told:
            new = list(curve[told:])
            told += len(new)
            tell(new)

    def follow() -> None:
        while not ended.wait(POLL_INTERVAL_S):
            look()

    before = sys.modules["__main__"]
    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        if sys.modules["__main__"] is not before:
            look()
