"""Run the command line in a process that can be damaged, and compare its results with the uninterrupted run.

Importing torch takes longer than a run. Therefore the campaign imports everything once and forks: a child runs
`trueloop.cli.app.main`, as the console script does, with its own standard streams and environment. The uninterrupted
run and the clock jumps use `python -m trueloop` instead, and must give bitwise the same result. The parent never
computes with torch, because a fork would lose its thread pool.
"""

from __future__ import annotations

import faulthandler
import hashlib
import os
import resource
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

RECIPE = Path(__file__).with_name("recipe.py")
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
TIMEOUT_S = 120.0  # a run takes 2 s, so a run that takes longer hangs


def preload() -> None:
    """Import the modules that every child needs."""
    import importlib

    os.environ.update(ONE_THREAD)
    names = ("matplotlib.backends.backend_agg", "matplotlib.figure", "multiprocessing.reduction", "torch.utils.data")
    names += ("torch._dynamo", "trueloop.cli.train", "trueloop.cli.display", "trueloop.cli.summary")
    for name in (*names, "trueloop.app.training.run_recipe", "trueloop.runs.curves"):
        importlib.import_module(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """Exit code and output of an ended process."""

    code: int
    """The exit code; the negative signal number if a signal ended the process."""
    out: str
    err: str

    @property
    def killed(self) -> bool:
        return self.code == -signal.SIGKILL

    def failure_problem(self) -> str:
        """Return what is wrong with a failure: it must print one clear error and no traceback, and not exit with 0."""
        if "Traceback" in self.err:
            return f"a traceback: {_last_line(self.err)}"
        if self.code == 0:
            return "exit code 0 although the run could not continue"
        if self.code < 0:
            return f"ended by signal {-self.code}"
        return "" if self.err.count("error: ") == 1 else f"not one clear error: {self.err.strip()[:200]!r}"


@dataclass(kw_only=True)
class Child:
    """A process that runs the command line."""

    pid: int
    scratch: Path
    number: int
    started_at: float = field(default_factory=time.monotonic)

    def alive(self) -> bool:
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

    def signal_at(self, seconds: float, number: int, *, group: bool = False) -> None:
        """Send a signal ``seconds`` after the start of the process, unless the process has ended before."""
        while time.monotonic() - self.started_at < seconds and self.alive():
            time.sleep(min(0.01, max(0.0, seconds - (time.monotonic() - self.started_at))))
        if self.alive():
            (os.killpg if group else os.kill)(self.pid, number)

    def wait_until(self, happened: Callable[[], bool]) -> bool:
        """Wait until ``happened()`` is true; return False if the process ended before."""
        while self.alive():
            if happened():
                return True
            time.sleep(0.001)
        return happened()

    def wait(self) -> Ended:
        """Wait until the process has ended; kill it if it hangs, after it has printed its stack to `err`."""
        while self.alive():
            if time.monotonic() - self.started_at > TIMEOUT_S + 10:
                os.kill(self.pid, signal.SIGKILL)
            time.sleep(0.002)
        status = os.waitpid(self.pid, 0)[1]
        out, err = (_stream(self.scratch, self.number, name).read_text() for name in ("out", "err"))
        return Ended(code=os.waitstatus_to_exitcode(status), out=out, err=err)


@dataclass(kw_only=True)
class CaseFolder:
    """The folder of one case, with its run folder and the output of its processes."""

    path: Path
    arguments: tuple[str, ...] = ()
    """Arguments of the command line, after recipe and run folder."""
    draws_curves: bool = False
    """True = draw the curves, which takes half as long as the run and matters only for faults of the disk."""
    run_dir: Path = Path()
    started: int = 0

    def __post_init__(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        self.run_dir = self.path / "run"

    @property
    def checkpoints(self) -> Path:
        return self.run_dir / "checkpoints"

    @property
    def command(self) -> list[str]:
        return ["train", f"{RECIPE}:build", "--run-dir", str(self.run_dir), *self.arguments]

    def start(self, *arguments: str, faults: Mapping[str, str] | None = None, file_bytes: int | None = None) -> Child:
        """Fork a child that runs the command.

        Args:
            arguments: further arguments of the command line.
            faults: environment variables of the recipe.
            file_bytes: upper bound on the size of any file it writes.
        """
        self.started += 1
        number, command = self.started, [*self.command, *arguments]
        for name in ("out", "err"):
            _stream(self.path, number, name).touch()  # the child may be killed before it could create them
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            try:
                os.setpgid(0, 0)
                _redirect(self.path, number)
                os.environ.update(faults or {})
                if file_bytes is not None:
                    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
                if not self.draws_curves:
                    _skip_drawing()
                _run_and_exit(command)
            finally:
                os._exit(1)
        return Child(pid=pid, scratch=self.path, number=number)

    def start_fresh(self, *arguments: str, faults: Mapping[str, str] | None = None) -> Child:
        """Start a new interpreter that runs the command, as a user does."""
        self.started += 1
        out, err = (_stream(self.path, self.started, name).open("wb") for name in ("out", "err"))
        with out, err:
            process = subprocess.Popen(  # `Child.wait` waits for it by process id
                [sys.executable, "-m", "trueloop", *self.command, *arguments],
                stdin=subprocess.DEVNULL, stdout=out, stderr=err, process_group=0,
                env={**os.environ, **ONE_THREAD, **(faults or {})},
            )  # fmt: skip
        process.returncode = 0  # so that the destructor of Popen does not wait
        return Child(pid=process.pid, scratch=self.path, number=self.started)

    def run(self, *arguments: str, faults: Mapping[str, str] | None = None) -> Ended:
        """Run the command to its end."""
        return self.start(*arguments, faults=faults).wait()


def _run_and_exit(command: list[str]) -> None:
    """Run the command line in this forked process and exit; this function never returns, whatever is raised."""
    code = 1
    try:
        faulthandler.dump_traceback_later(TIMEOUT_S)
        from trueloop.cli.app import main

        code = main(command)
        threading._shutdown()  # as the interpreter does at exit: wait for threads that are not daemons
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    except KeyboardInterrupt:  # before `main` began or after it ended; `main` handles any other
        code = 130
    except BaseException:  # noqa: BLE001 - as the interpreter does: print it, and end with 1
        traceback.print_exc()
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)


def _skip_drawing() -> None:
    from trueloop.runs import curves, html_page

    curves.save_panels = lambda panels, title, path_png: path_png.write_bytes(b"")
    html_page.render_svg = lambda panel: '<svg viewBox="0 0 1 1"></svg>'


def _redirect(scratch: Path, number: int) -> None:
    for descriptor, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(_stream(scratch, number, name), os.O_WRONLY), descriptor)


def _stream(scratch: Path, number: int, name: str) -> Path:
    return scratch / f"{number}.{name}"


def _last_line(text: str) -> str:
    return text.strip().splitlines()[-1][:200]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The results of a finished run that must not depend on interruptions."""

    weights: str
    """SHA-256 of final/model.safetensors."""
    rows: tuple[tuple[Any, ...], ...]
    """For each update: number, epoch, loss, gradient norm, learning rate, examples, skipped."""
    evaluations: tuple[tuple[Any, ...], ...]
    """For each evaluation: update, split, metrics, and whether it was the best so far."""
    best: tuple[Any, ...]
    """The best evaluation."""
    end: str
    """Reason of the end."""


def weights_of(run_dir: Path) -> str:
    return hashlib.sha256((run_dir / "final" / "model.safetensors").read_bytes()).hexdigest()


def result_of(run_dir: Path) -> Result:
    """Read the results of a finished run."""
    from trueloop.runs import read_journal

    history = read_journal(run_dir)
    updates = history.updates
    columns = (updates.update, updates.epoch, updates.loss, updates.grad_norm, updates.lr, updates.examples)
    evaluations = tuple((e.update, e.split, tuple(sorted(e.metrics.items())), e.best) for e in history.evaluations)
    best = history.best
    return Result(
        weights=weights_of(run_dir),
        rows=tuple(zip(*columns, updates.skipped, strict=True)),
        evaluations=evaluations,
        best=(best.update, tuple(sorted(best.metrics.items()))) if best else (),
        end=history.end.reason if history.end else "",
    )


def difference(expected: Result, actual: Result) -> str:
    """Describe the first difference from the uninterrupted run; "" if there is none."""
    if actual.weights != expected.weights:
        return "other final weights"
    for row, expected_row in zip(actual.rows, expected.rows, strict=False):
        if row != expected_row:
            return f"another journal row: {row} instead of {expected_row}"
    if len(actual.rows) != len(expected.rows):
        return f"{len(actual.rows)} updates in the journal instead of {len(expected.rows)}"
    if actual.evaluations != expected.evaluations:
        return f"other evaluations: {actual.evaluations[-2:]} instead of {expected.evaluations[-2:]}"
    if actual.best != expected.best:
        return f"another best: {actual.best} instead of {expected.best}"
    return "" if actual.end == expected.end else f"the run ended as {actual.end!r} instead of {expected.end!r}"
