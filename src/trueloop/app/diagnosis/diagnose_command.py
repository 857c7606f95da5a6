"""Run `trueloop diagnose`: run the script, then try changes in forked reruns of it, and print what helps."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Annotated, Final, NoReturn

from cyclopts import Parameter
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from trueloop.app.diagnosis.conclusions import Diagnosis, conclude, is_worse, promising
from trueloop.app.diagnosis.diagnosis_output import print_diagnosis, to_json
from trueloop.app.diagnosis.experiments import ExperimentRunner
from trueloop.app.option_types import Count
from trueloop.app.output_file import check_writable, write_output
from trueloop.app.sanitizer.run_command import INTERRUPTED, RunOptions, SanitizedRun, run_sanitized
from trueloop.core.errors import InvalidConfig
from trueloop.sanitizer.experiments.fork_server import ForkServer
from trueloop.sanitizer.run_program import ProgramCommand

UNITS: Final = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
DEFAULT_BUDGET: Final = "60s"
DEFAULT_UPDATES: Final = 100
MIN_UPDATES: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnoseOptions:
    """The command line options of `trueloop diagnose`."""

    budget: str = DEFAULT_BUDGET
    """Time for all experiments, after the script's own run: 60s, 5m, 1h."""
    updates: Annotated[Count, Parameter()] = DEFAULT_UPDATES
    """Length of each experiment in updates."""
    json: Path | None = None
    """Write the experiments to this file as JSON."""
    html: Path | None = None
    """Write the experiments to this file as HTML with the curve of each."""
    select: Sequence[str] = ()
    """In the script's own run, watch only for these codes, families or slugs, separated by commas."""
    ignore: Sequence[str] = ()
    """Do not report these codes, families or slugs, separated by commas; only count them."""


def diagnose(program: ProgramCommand, options: DiagnoseOptions, *, longer: ProgramCommand | None = None) -> int:
    """Run a program under the sanitizer, then the experiments; print both, and return the exit code of the program.

    Args:
        program: the program to run.
        options: the options.
        longer: the program that the experiments run instead, such as the whole training after a smoke test of it.

    Raises:
        InvalidConfig: an option is invalid, or this system cannot fork; raised before the program starts.
        RunFolderError: a file could not be written; raised at the end.
    """
    budget_s = parse_duration(options.budget)
    _check(options)
    json_path = options.json and check_writable(options.json, "report")
    html_path = options.html and check_writable(options.html, "report")
    base, process = Path.cwd(), os.getpid()
    folder = Path(tempfile.mkdtemp(prefix="trueloop-diagnose-"))
    server = ForkServer(longer or program, folder)
    try:
        run = run_sanitized(program, RunOptions(select=options.select, ignore=options.ignore))
        if run.forked:
            return run.code
        if not run.report.updates:
            _print_line("No change was tried: no update was seen in the script's own run.")
            return run.code
        found = _experiment(server, run, budget_s=budget_s, updates=options.updates)
    finally:
        if os.getpid() == process:
            server.close()
            shutil.rmtree(folder, ignore_errors=True)
    print_diagnosis(found, run.report, Console(file=sys.__stderr__ or sys.stderr, highlight=False), base=base)
    if json_path:
        write_output(json_path, json.dumps(to_json(found, run.report), indent=2, allow_nan=False) + "\n", "report")
    if html_path:
        from trueloop.app.diagnosis.diagnosis_page import to_html

        write_output(html_path, to_html(found, run.report, base=base), "report")
    return run.code


def diagnose_recipe(words: Sequence[str]) -> int:
    """Run the smoke test of a recipe under the sanitizer, then the experiments, on its whole training.

    Args:
        words: the words after ``trueloop train``, with ``--smoke`` and ``--diagnose``.

    Raises:
        InvalidConfig: there is no ``--smoke``, or this system cannot fork.
    """
    smoke = tuple(word for word in words if word != "--diagnose")
    if "--smoke" not in smoke:
        raise InvalidConfig(
            "--diagnose is for smoke tests.",
            why="A whole training is diagnosed by trueloop diagnose -m trueloop train RECIPE.",
            fix="Add --smoke.",
        )
    whole = [word for word in smoke if word not in ("--smoke", "--fresh")]
    programs = [
        ProgramCommand(target="trueloop", arguments=("train", *each), module=True)
        for each in (smoke, (*whole, "--fresh"))
    ]
    return diagnose(programs[0], DiagnoseOptions(), longer=programs[1])


def parse_duration(text: str) -> float:
    """Return the seconds of a duration: "60s", "5m", "1h", "90".

    Raises:
        InvalidConfig: the text is not a duration.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|m|min|h|)", text.strip())
    if match is None:
        raise InvalidConfig(f"--budget is {text!r}.", fix="Write a number with s, m or h: --budget 60s.")
    return float(match[1]) * UNITS[match[2]]


def _check(options: DiagnoseOptions) -> None:
    if options.updates < MIN_UPDATES:
        raise InvalidConfig(
            f"--updates is {options.updates}.",
            why="A difference over so few updates may be noise.",
            fix=f"Choose {MIN_UPDATES} or more: --updates {DEFAULT_UPDATES}.",
        )
    if not hasattr(os, "fork"):
        raise InvalidConfig(
            "trueloop diagnose does not work on this system.",
            why="Its experiments are forked processes, which Windows does not have.",
            fix="Use Linux, macOS or WSL; trueloop run works everywhere.",
        )
    if int(os.environ.get("WORLD_SIZE") or 1) > 1:
        raise InvalidConfig(
            f"trueloop diagnose was started in {os.environ['WORLD_SIZE']} processes.",
            why="An experiment is one process.",
            fix="Start it without torchrun: trueloop diagnose train.py.",
        )


def _experiment(server: ForkServer, run: SanitizedRun, *, budget_s: float, updates: int) -> Diagnosis:
    """Run the experiments, with a progress display on a terminal."""
    learning = run.report.learning
    if run.code == INTERRUPTED:
        _print_line("The script was interrupted. Changes are tried now; Ctrl-C ends this too.")
    if threading.current_thread() is threading.main_thread():  # the script may have its own handler
        signal.signal(signal.SIGINT, _interrupt_once)
    console = Console(file=sys.__stderr__ or sys.stderr, highlight=False)
    columns = TextColumn("trueloop: {task.description}", markup=False), BarColumn(bar_width=24), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=None)
        number = 0

        def show(title: str, left: int) -> None:
            nonlocal number
            number += 1
            progress.update(task, description=title, completed=number, total=number + left if left else None)

        runner = ExperimentRunner(server, updates=updates, budget_s=budget_s, on_trial=show)
        trials = runner.run(
            promising=lambda baseline, changes: promising(baseline, changes, learning), is_worse=is_worse
        )
    return conclude(trials, learning)


def _interrupt_once(number: int, frame: FrameType | None) -> NoReturn:
    """End the experiments at the first Ctrl-C; a second one must not keep what was tried from being printed."""
    signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def _print_line(message: str) -> None:
    Console(file=sys.__stderr__ or sys.stderr, soft_wrap=True, highlight=False).print(Text(f"trueloop: {message}"))
