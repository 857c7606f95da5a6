"""Run one job: the entry's script under the sanitizer, then again without it to compare weights and measure time.

The first run does the same as `trueloop run` on the script that the page shows.
"""

from __future__ import annotations

import hashlib
import sys
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from trueloop.core.findings import Severity
from trueloop.core.formatting import to_single_line
from trueloop.failures.selection import FailureSelection
from trueloop.lab.arena.script import write_reference_script, write_script
from trueloop.lab.arena.tracks import find_track
from trueloop.lab.arena.trial import CurveCallback, End, Job, Point, Trial, TrialFinding
from trueloop.runs.live.process_alive import memory_mib
from trueloop.sanitizer.launch import FINDINGS_EXIT_CODE, LaunchResult, launch
from trueloop.sanitizer.run_program import ProgramCommand, run_program

if TYPE_CHECKING:
    from torch import nn

POLL_INTERVAL_S: Final = 0.05
"""Seconds between two reads of the curve of a running script."""
MAX_TIMED_RUNS: Final = 5
"""Maximum number of timed runs; short scripts need several, as the CPU clock is coarse."""
MIN_TIMED_S: Final = 0.08
"""Total seconds of training after which timing stops."""


def run_job(job: Job, folder: Path, on_points: CurveCallback, last_error: Callable[[], str]) -> Trial:
    """Run one job to its end.

    Args:
        job: the job.
        folder: folder for its script.
        on_points: function that receives the new points of the curve.
        last_error: function that returns the last line of standard error.
    """
    track = find_track(job.track)
    start_mib = memory_mib() or 0.0
    path = folder / f"{job.track}.py"
    path.write_text(write_script(track, job.entry, job.seed, practice=job.practice), encoding="utf-8")
    with _report_curve(on_points):
        launched = launch(ProgramCommand(target=str(path)), FailureSelection(), stop_on_error=True)
    trial = _judge_run(job.seed, launched, last_error)
    if job.without_timing or trial.end != End.REACHED:
        return trial
    on_points([])
    reference_path = folder / "reference.py"
    reference_path.write_text(write_reference_script(track, job.seed), encoding="utf-8")
    _reset_peak_memory()
    ratio, step_s, variables = _time_against_reference(path, reference_path)
    peak_mib = _peak_memory_mib()
    if (variables["reached"], _weights_digest(variables["model"])) != (trial.updates, trial.digest):
        return replace(trial, end=End.FAILED.value, why="The second run of the same script had different weights.")
    memory = None if peak_mib is None else round(max(0.0, peak_mib - start_mib), 1)
    return replace(trial, time=ratio, step_ms=1000 * step_s, memory_mib=memory)


def _judge_run(seed: int, launched: LaunchResult, last_error: Callable[[], str]) -> Trial:
    variables = vars(sys.modules["__main__"])
    curve = cast("list[Point]", variables.get("curve", []))
    update, examples, accuracy = curve[-1] if curve else (0, 0, 0.0)
    trial = Trial(seed=seed, end="failed", updates=update, examples=examples, accuracy=accuracy)
    findings = [finding for finding in launched.report.findings if finding.severity != Severity.NOTE]
    if findings:
        worst = findings[0]
        return replace(
            trial,
            end=End.FOUND.value,
            found=TrialFinding(
                code=worst.code,
                title=to_single_line(worst.title),
                severity=worst.severity,
                message=to_single_line(worst.message),
                line=worst.location.line if worst.location else 0,
                fix=to_single_line(worst.fix),
            ),
        )
    if launched.not_judged_reason or launched.report.problems:
        return replace(
            trial,
            why=launched.not_judged_reason
            or f"The sanitizer did not check the run completely: {to_single_line(launched.report.problems[0])}",
        )
    if launched.code not in (0, FINDINGS_EXIT_CODE):
        return replace(trial, why=f"The run ended with exit code {launched.code}: {to_single_line(last_error())}")
    end = End.REACHED if variables["reached"] else End.NOT_REACHED
    return replace(trial, end=end.value, digest=_weights_digest(variables["model"]))


def _time_against_reference(path: Path, reference_path: Path) -> tuple[float | None, float, Mapping[str, Any]]:
    """Run a script alternately with the reference.

    Return the ratio of times per example, the script's CPU seconds per update, and its variables.

    The ratio is None if the CPU clock did not advance.
    """
    seconds = {reference_path: 0.0, path: 0.0}
    examples = {reference_path: 0, path: 0}
    updates = 0
    variables: dict[Path, Mapping[str, Any]] = {}
    for repetition in range(MAX_TIMED_RUNS):
        for script_path in (reference_path, path):
            if repetition == 0 or seconds[script_path] < MIN_TIMED_S:
                run_program(ProgramCommand(target=str(script_path)))
                variables[script_path] = vars(sys.modules["__main__"])
                seconds[script_path] += variables[script_path]["train_s"]
                examples[script_path] += variables[script_path]["examples"]
                updates += variables[script_path]["update"] if script_path is path else 0
    step_s = seconds[path] / updates
    if not seconds[reference_path]:
        return None, step_s, variables[path]
    reference_time = seconds[reference_path] / examples[reference_path]
    return seconds[path] / examples[path] / reference_time, step_s, variables[path]


def _reset_peak_memory() -> None:
    """Let the kernel measure the peak of this process's memory again from now on, where it can."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _peak_memory_mib() -> float | None:
    """Return the peak of this process's memory; None if the system does not say."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return None
    return next((int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM:")), None)


def _weights_digest(model: nn.Module) -> str:
    """Return a digest of the weights; bitwise equal weights have equal digests."""
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()[:32]


@contextmanager
def _report_curve(on_points: CurveCallback) -> Generator[None]:
    """Report the curve of the running script from another thread."""
    ended = threading.Event()
    reported = 0
    latest_curve: Any = None

    def report_new() -> None:
        nonlocal reported, latest_curve
        curve = vars(sys.modules["__main__"]).get("curve")
        if curve is not latest_curve:
            reported, latest_curve = 0, curve
        if curve and len(curve) > reported:
            new_points = list(curve[reported:])
            reported += len(new_points)
            on_points(new_points)

    def poll() -> None:
        while not ended.wait(POLL_INTERVAL_S):
            report_new()

    main_before = sys.modules["__main__"]
    thread = threading.Thread(target=poll, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        if sys.modules["__main__"] is not main_before:
            report_new()
