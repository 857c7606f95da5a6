"""What watching costs: time per update of one training script, bare and under each tool that looks for silent bugs.

Every tool watches the same unmodified ``systems/script.py``. They take turns within one run of it, each for some
updates, in rotating order: what lies where in memory makes more of a difference between two processes than watching
does, while bare turns are within a thousandth of each other, and no slower than in a program without the sanitizer.

TrainCheck has requirements of its own and replaces the program's source, so it is measured only where it is installed
apart: ``python -m venv X && X/bin/pip install torch traincheck``, then ``python benchmarks/watch.py --traincheck X``,
or ``TRAINCHECK=X make bench``.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import runpy
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from measure import RESULTS, Cost, SideBySide, Spread, console, interleave, machine, rotated, table, verdict, write

from trueloop.core.findings import Report
from trueloop.failures.load import catalogue
from trueloop.runs.live.writer import LiveWriter
from trueloop.sanitizer import watch as watching
from trueloop.sanitizer.dispatch import WatchedFailure
from trueloop.tracing import sampling

SCRIPT = Path(__file__).parent / "systems" / "script.py"
BARE = "bare"
STEADY = "watched, steady state"
LAB = "watched, shown in the lab"
FULL = "watched, every update in full"
ANOMALY = "set_detect_anomaly(True)"
REFERENCE, SELECTIVE = "TrainCheck, reference run", "TrainCheck, selective"
TRAINCHECK_UPDATES, TRAINCHECK_WARM, TRAINCHECK_ROUNDS = 40, 10, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How long to look at a workload, and what watching it may cost."""

    updates: int
    """In each turn."""
    warm: int
    """Of those, at the start: they are not counted."""
    rounds: int
    steady: float
    """The largest ratio the project allows itself."""
    full: float = 1.5
    lightly: Mapping[str, float] = field(default_factory=dict[str, float])
    """Other constants of `levels`, by which the steady state begins at once."""


def loads(*, quick: bool) -> dict[str, Load]:
    """List the workloads of ``systems/script.py``.

    The steady state begins after the initial updates with full tracing: after about 1,000 fast ones or 250
    slow ones. A turn of slow ones is in it after the first; what comes in full once more later on, a thousandth of a
    program's time at most, is left out of that.
    """
    lightly = {"INITIAL_UPDATES": 1, "UNBUDGETED_UPDATES": 0, "UNBUDGETED_S": 0.0}
    return {
        "mlp": Load(updates=3000, warm=1500, rounds=2 if quick else 25, steady=1.02),
        "gpt": Load(updates=24, warm=4, rounds=2 if quick else 30, steady=1.005, lightly=lightly),
        "cnn": Load(updates=24, warm=4, rounds=2 if quick else 30, steady=1.005, lightly=lightly),
    }


Reports = dict[str, list[Report]]


def script(load: str, updates: int) -> list[tuple[float, float]]:
    """Run the script in this process; return the times it noted, one per update and one behind the last."""
    words = {"BENCH_WORKLOAD": load, "BENCH_UPDATES": str(updates)}
    with mock.patch.dict(os.environ, words):
        return runpy.run_path(str(SCRIPT), run_name="__main__")["times"]


def cost(times: list[tuple[float, float]], warm: int) -> Cost:
    """Return the mean cost of an update after the first ones."""
    count = len(times) - 1 - warm
    return Cost(*((times[-1][clock] - times[warm][clock]) / count for clock in (0, 1)))


def contexts(
    reports: list[Report], lightly: Mapping[str, float]
) -> dict[str, Callable[[], AbstractContextManager[None]]]:
    """Return what switches each system on, and off again; a watch's report goes to the others."""
    return {
        BARE: bare,
        STEADY: partial(watched, reports, **lightly),
        LAB: partial(watched, reports, lab=True, **lightly),
        FULL: partial(watched, reports, INITIAL_UPDATES=10**9, MAX_BATCHES=10**9),
        ANOMALY: anomaly,
    }


class Turns:
    """Lets the systems take turns within one run of the script, whose clock it is.

    The script asks for the time at the start of every update: that is where one system gives way to the next.
    """

    def __init__(self, load: Load) -> None:
        self._load, self._clock, self._calls = load, time.perf_counter, 0
        self._new_reports: list[Report] = []
        systems = contexts(self._new_reports, load.lightly)
        self._order = [
            (system, systems[system]) for turn in range(load.rounds + 1) for system in rotated(list(systems), turn)
        ]
        self._running = ExitStack()
        self.reports: Reports = {system: [] for system in systems}

    def __call__(self) -> float:
        """Tell the time."""
        if sys._getframe(1).f_code.co_filename == str(SCRIPT):  # noqa: SLF001
            turn, place = divmod(self._calls, self._load.updates)
            if not place:
                self._switch(turn)
            self._calls += 1
        return self._clock()

    def _switch(self, turn: int) -> None:
        self._running.close()
        if self._new_reports:
            self.reports[self._order[turn - 1][0]].append(self._new_reports.pop())
        gc.collect()
        if turn < len(self._order):
            self._running.enter_context(self._order[turn][1]())

    def costs(self, times: list[tuple[float, float]]) -> dict[str, list[Cost]]:
        """Return the mean cost of an update in each turn; the first round is left out."""
        count, found = self._load.updates, {system: list[Cost]() for system in self.reports}
        for turn, (system, _) in enumerate(self._order):
            if turn >= len(self.reports):
                found[system].append(cost(times[turn * count : (turn + 1) * count], self._load.warm))
        return found


def compare(name: str, load: Load) -> tuple[SideBySide, Reports]:
    """Time the script under everybody but TrainCheck; also return what the watches said."""
    turns = Turns(load)
    with mock.patch.object(time, "perf_counter", turns):
        times = script(name, load.updates * (load.rounds + 1) * len(turns.reports))
    return SideBySide(costs=turns.costs(times)), {name: made for name, made in turns.reports.items() if made}


def keep_memory() -> None:
    """Let the C library give no memory back: whether a large buffer lies where it would is luck, worth a tenth."""
    if sys.platform == "linux":
        for what in (-1, -3):  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD, of malloc.h
            ctypes.CDLL(None).mallopt(what, 1 << 30)


@contextmanager
def bare() -> Iterator[None]:
    """Run without the sanitizer."""
    yield


@contextmanager
def anomaly() -> Iterator[None]:
    """Let torch look for NaN in every backward."""
    with torch.autograd.set_detect_anomaly(True):
        yield


@contextmanager
def watched(reports: list[Report], *, lab: bool = False, **changed: float) -> Iterator[None]:
    """Watch with the whole catalogue, with other constants of `levels`."""
    folder = Path(tempfile.gettempdir()) / f"trueloop-bench-{os.getpid()}"
    audience = LiveWriter(folder, {"name": "script.py"}) if lab else None
    with mock.patch.multiple(sampling, **changed) if changed else bare():
        watch = watching.Watch(
            [WatchedFailure(entry.failure, entry.slug) for entry in catalogue().values()], observer=audience
        )
        with watch:
            yield
        reports.append(watch.report())


def own_words(reports: Reports) -> dict[str, Any]:
    """Return the cost according to the reports, in seconds per update over the whole run, and what they found."""
    for made in reports.values():
        assert not any(each.problems for each in made), made[-1].problems
    return {
        system: {
            "seconds_per_update": Spread.of([each.overhead_s / max(1, each.updates) for each in made]),
            "share": Spread.of([each.overhead_s / each.seconds for each in made]),
            "updates_in_full": made[-1].updates_traced,
            "findings": sorted({finding.code for each in made for finding in each.findings}),
        }
        for system, made in reports.items()
    }


class TrainCheck:
    """TrainCheck as its documentation has it used: trace a reference run, infer invariants, trace what they need."""

    def __init__(self, venv: Path, load: str) -> None:
        self._bin, self._load = venv / "bin", load
        self._folder = Path(tempfile.mkdtemp(prefix="traincheck-"))
        for source in (SCRIPT, SCRIPT.parents[1] / "workloads.py"):
            shutil.copy(source, self._folder)

    def version(self) -> str:
        """Return what is installed."""
        words = "import importlib.metadata as m; print(m.version('traincheck'))"
        return self._call("python", "-c", words).strip()

    def compare(self, rounds: int) -> SideBySide:
        """Time the script bare in that environment, and under both ways to trace it."""
        self.trace("reference")
        self._call("traincheck-infer", "-f", "reference", "-o", "invariants.json")
        runs: Mapping[str, Callable[[], Cost]] = {
            BARE: self.bare,
            REFERENCE: partial(self.trace, "again"),
            SELECTIVE: partial(self.trace, "selective", "-i", "invariants.json"),
        }
        return interleave(runs, rounds)

    def bare(self) -> Cost:
        """Run the script."""
        self._call("python", "script.py")
        return self._cost()

    def trace(self, output: str, *words: str) -> Cost:
        """Run it instrumented."""
        shutil.rmtree(self._folder / output, ignore_errors=True)
        whole = ("-a", "--pyscript", "script.py", "--models-to-track", "model", "--output-dir", output, *words)
        self._call("traincheck-collect", *whole)
        return self._cost()

    def _cost(self) -> Cost:
        return cost(json.loads((self._folder / "times.json").read_text()), TRAINCHECK_WARM)

    def _call(self, program: str, *words: str) -> str:
        (self._folder / "times.json").unlink(missing_ok=True)
        environment = os.environ | {
            "BENCH_WORKLOAD": self._load, "BENCH_UPDATES": str(TRAINCHECK_UPDATES),
            "BENCH_TIMES": str(self._folder / "times.json"), "PATH": f"{self._bin}{os.pathsep}{os.environ['PATH']}",
        }  # fmt: skip
        command = [str(self._bin / program), *words]
        done = subprocess.run(command, cwd=self._folder, env=environment, capture_output=True, text=True, check=True)
        return done.stdout


def show(name: str, found: SideBySide, said: Mapping[str, Any]) -> None:
    """Print one workload's table."""
    rows = [
        [
            system,
            f"{found.cost(system).median * 1e6:,.0f}",
            f"{(found.cost(system).median - found.cost(BARE).median) * 1e6:+,.1f}",
            str(found.ratio(system, BARE)),
            str(found.ratio(system, BARE, "cpu")),
            f"{said[system]['seconds_per_update'].median * 1e6:,.1f}" if system in said else "",
        ]
        for system in found.costs
    ]
    columns = ["system", "µs per update", "more", "/ bare, wall", "/ bare, CPU", "as it says itself"]
    table(f"{name}: median within a round (middle 80 % of the rounds)", columns, rows)


def content(found: SideBySide) -> dict[str, Any]:
    """Return what goes into the JSON."""
    return {
        system: {
            "seconds_per_update": found.cost(system),
            "wall_ratio_to_bare": found.ratio(system, BARE),
            "cpu_ratio_to_bare": found.ratio(system, BARE, "cpu"),
        }
        for system in found.costs
    }


def options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="about half a minute; rough numbers, nothing kept")
    parser.add_argument(
        "--traincheck",
        type=Path,
        default=os.environ.get("TRAINCHECK"),
        help="a virtual environment with torch and traincheck in it; also by the variable TRAINCHECK",
    )
    parser.add_argument("--only", choices=["mlp", "gpt", "cnn"], help="one workload; the others' figures stay")
    return parser.parse_args()


def main() -> None:
    """Measure, print, and write down."""
    asked = options()
    keep_memory()
    found: dict[str, Any] = earlier() if asked.only and not asked.quick else {}
    for name, load in loads(quick=asked.quick).items():
        if asked.only not in (None, name):
            continue
        side, reports = compare(name, load)
        said = own_words(reports)
        show(name, side, said)
        for system, goal in ((STEADY, load.steady), (LAB, load.steady), (FULL, load.full)):
            wall, cpu = (side.ratio(system, BARE, clock) for clock in ("wall", "cpu"))
            line = f"{name}: {system} / bare = {wall} by wall, {cpu} by CPU time, goal {goal}"
            console.print(f"{verdict(wall.median, goal)} {verdict(cpu.median, goal)}  {line}")
        found[name] = {**found.get(name, {}), "systems": content(side), "as_it_says_itself": said}
        if asked.traincheck:
            traincheck = TrainCheck(asked.traincheck.resolve(), name)
            traced = traincheck.compare(1 if asked.quick else TRAINCHECK_ROUNDS)
            show(f"{name}, TrainCheck {traincheck.version()} in an environment of its own", traced, {})
            found[name] |= {"traincheck": content(traced), "traincheck_version": traincheck.version()}
    if not asked.traincheck:
        console.print("TrainCheck is left out: it was not installed for this (--traincheck).")
    settings = {"loads": {name: vars_of(load) for name, load in loads(quick=asked.quick).items()}}
    write("watch", {"settings": settings, "found": found}, quick=asked.quick or len(found) < len(settings["loads"]))


def earlier() -> dict[str, Any]:
    """Return what was measured before of every workload, on this machine."""
    try:
        kept = json.loads((RESULTS / "watch.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    now, same = machine(), ("cpu", "system", "python", "versions")
    return kept["found"] if all(kept["machine"][name] == now[name] for name in same) else {}


def vars_of(load: Load) -> dict[str, float]:
    """Return the settings of a workload."""
    return {"updates": load.updates, "warm": load.warm, "rounds": load.rounds}


if __name__ == "__main__":
    main()
