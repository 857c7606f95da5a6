"""One run of the command line: start it, hurt it, wait for it, and compare its results with the uninterrupted run.

Importing torch takes longer than the whole run. So the campaign imports everything once and forks: a child runs
`trueloop.cli.app.main` in this process image, exactly as the console script does, with its own standard streams
and environment. The uninterrupted run and the clock's jumps use `python -m trueloop` instead, and must give the same
bits. The parent never computes with torch, so that no thread pool is lost in the fork.
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
PATIENCE_S = 120.0  # of a run that takes 2 s: more than that is a hang


def preload() -> None:
    """Import once what every child needs."""
    import importlib

    os.environ.update(ONE_THREAD)
    names = ("matplotlib.backends.backend_agg", "matplotlib.figure", "multiprocessing.reduction", "torch.utils.data")
    names += ("torch._dynamo", "trueloop.cli.train", "trueloop.cli.display", "trueloop.cli.summary")
    for name in (*names, "trueloop.app.training.run_recipe", "trueloop.runs.curves"):
        importlib.import_module(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How one process ended."""

    code: int
    """The exit code; minus the signal's number where a signal ended it."""
    out: str
    err: str

    @property
    def killed(self) -> bool:
        return self.code == -signal.SIGKILL

    def trouble(self) -> str:
        """What is wrong with the way it failed: an error must be one lesson, not a traceback, and not a 0."""
        if "Traceback" in self.err:
            return f"a traceback: {_last_line(self.err)}"
        if self.code == 0:
            return "exit code 0 although it could not go on"
        if self.code < 0:
            return f"ended by signal {-self.code}"
        return "" if self.err.count("error: ") == 1 else f"not one clear error: {self.err.strip()[:200]!r}"


@dataclass(kw_only=True)
class Child:
    """A process that runs the command line."""

    pid: int
    scratch: Path
    number: int
    began: float = field(default_factory=time.monotonic)

    def alive(self) -> bool:
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

    def signal_at(self, seconds: float, number: int, *, group: bool = False) -> None:
        """Send a signal so long after the start, unless the process has ended by then."""
        while time.monotonic() - self.began < seconds and self.alive():
            time.sleep(min(0.01, max(0.0, seconds - (time.monotonic() - self.began))))
        if self.alive():
            (os.killpg if group else os.kill)(self.pid, number)

    def wait_until(self, happened: Callable[[], bool]) -> bool:
        """Wait for something; False where the process ended first."""
        while self.alive():
            if happened():
                return True
            time.sleep(0.001)
        return happened()

    def wait(self) -> Ended:
        """Wait for the end; a process that hangs is killed, and its stack is in `err`."""
        while self.alive():
            if time.monotonic() - self.began > PATIENCE_S + 10:
                os.kill(self.pid, signal.SIGKILL)
            time.sleep(0.002)
        status = os.waitpid(self.pid, 0)[1]
        out, err = (_stream(self.scratch, self.number, name).read_text() for name in ("out", "err"))
        return Ended(code=os.waitstatus_to_exitcode(status), out=out, err=err)


@dataclass(kw_only=True)
class Place:
    """Folder of one case: the run folder, and the output of its processes."""

    path: Path
    words: tuple[str, ...] = ()
    """Of the command line, after recipe and run folder."""
    pictures: bool = False
    """Draw the curves. They take as long as half the run, and only the faults of a disk have to do with them."""
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
        return ["train", f"{RECIPE}:build", "--run-dir", str(self.run_dir), *self.words]

    def start(self, *words: str, faults: Mapping[str, str] | None = None, file_bytes: int | None = None) -> Child:
        """Fork a child that runs the command.

        Args:
            words: more of the command line.
            faults: environment variables of the recipe.
            file_bytes: upper bound on the size of any file it writes.
        """
        self.started += 1
        number, command = self.started, [*self.command, *words]
        for name in ("out", "err"):
            _stream(self.path, number, name).touch()  # a kill may come before the child could
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
                if not self.pictures:
                    _draw_nothing()
                _become(command)
            finally:
                os._exit(1)
        return Child(pid=pid, scratch=self.path, number=number)

    def start_fresh(self, *words: str, faults: Mapping[str, str] | None = None) -> Child:
        """Start a new interpreter that runs the command, as a user does."""
        self.started += 1
        out, err = (_stream(self.path, self.started, name).open("wb") for name in ("out", "err"))
        with out, err:
            process = subprocess.Popen(  # left to `Child.wait`, which waits by process id
                [sys.executable, "-m", "trueloop", *self.command, *words],
                stdin=subprocess.DEVNULL, stdout=out, stderr=err, process_group=0,
                env={**os.environ, **ONE_THREAD, **(faults or {})},
            )  # fmt: skip
        process.returncode = 0  # so that its own destructor does not wait
        return Child(pid=process.pid, scratch=self.path, number=self.started)

    def run(self, *words: str, faults: Mapping[str, str] | None = None) -> Ended:
        """Run the command to its end."""
        return self.start(*words, faults=faults).wait()


def _become(command: list[str]) -> None:
    """Run the command line in this forked process and end it; never returns, whatever is raised, and by whom."""
    code = 1
    try:
        faulthandler.dump_traceback_later(PATIENCE_S)
        from trueloop.cli.app import main

        code = main(command)
        threading._shutdown()  # what the interpreter does at its end: wait for threads that are not daemons
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    except KeyboardInterrupt:  # before `main` had begun, or after it had ended: it takes every other one
        code = 130
    except BaseException:  # noqa: BLE001 - as the interpreter does: print it, and end with 1
        traceback.print_exc()
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)


def _draw_nothing() -> None:
    from trueloop.runs import curves, report

    curves.save_panels = lambda shown, title, path_png: path_png.write_bytes(b"")
    report.render_svg = lambda panel: '<svg viewBox="0 0 1 1"></svg>'


def _redirect(scratch: Path, number: int) -> None:
    for descriptor, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(_stream(scratch, number, name), os.O_WRONLY), descriptor)


def _stream(scratch: Path, number: int, name: str) -> Path:
    return scratch / f"{number}.{name}"


def _last_line(text: str) -> str:
    return text.strip().splitlines()[-1][:200]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a finished run left behind, as far as it must not depend on what happened on the way."""

    weights: str
    """SHA-256 of final/model.safetensors."""
    rows: tuple[tuple[Any, ...], ...]
    """Per update: number, epoch, loss, gradient norm, rate, examples, skipped."""
    evaluations: tuple[tuple[Any, ...], ...]
    """Per evaluation: update, split, metrics, whether the best so far."""
    best: tuple[Any, ...]
    """The best evaluation."""
    end: str
    """Why it ended."""


def weights_of(run_dir: Path) -> str:
    return hashlib.sha256((run_dir / "final" / "model.safetensors").read_bytes()).hexdigest()


def result_of(run_dir: Path) -> Result:
    """Read a finished run."""
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


def difference(expected: Result, found: Result) -> str:
    """Return the first difference from the uninterrupted run; empty where there is none."""
    if found.weights != expected.weights:
        return "other final weights"
    for mine, theirs in zip(found.rows, expected.rows, strict=False):
        if mine != theirs:
            return f"another journal row: {mine} instead of {theirs}"
    if len(found.rows) != len(expected.rows):
        return f"{len(found.rows)} updates in the journal instead of {len(expected.rows)}"
    if found.evaluations != expected.evaluations:
        return f"other evaluations: {found.evaluations[-2:]} instead of {expected.evaluations[-2:]}"
    if found.best != expected.best:
        return f"another best: {found.best} instead of {expected.best}"
    return "" if found.end == expected.end else f"it ended as {found.end!r} instead of {expected.end!r}"
