"""Measure the sanitizer's cost: time per update of a training script, bare and under tools that search for silent bugs.

Every tool watches the same unmodified ``systems/script.py``. The tools take turns within one run of the script, each
for some updates, in rotating order. Separate processes cannot be compared: they differ more by their memory layout than
by the sanitizer. Bare turns are within a thousandth of each other, and no slower than in a program without the
sanitizer.

TrainCheck has its own requirements and replaces the program's source, so it is measured only if it is installed in a
separate environment: ``python -m venv X && X/bin/pip install torch traincheck``, then
``python benchmarks/watch.py --traincheck X``, or ``TRAINCHECK=X make bench``.
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
from measure import RESULTS, Cost, SideBySide, Spread, console, interleave, machine, rotate, table, verdict, write

from trueloop.core.findings import Report
from trueloop.failures.load import catalogue
from trueloop.runs.live.writer import LiveWriter
from trueloop.sanitizer import watch as watching
from trueloop.sanitizer.dispatch import WatchedFailure
from trueloop.tracing import sampling

SCRIPT = Path(__file__).parent / "systems" / "script.py"
BARE = "bare"
SAMPLED = "trueloop run, sampled tracing"
LAB = "trueloop run --lab, sampled tracing"
FULL = "trueloop run, full tracing"
ANOMALY = "set_detect_anomaly(True)"
REFERENCE, SELECTIVE = "TrainCheck, reference run", "TrainCheck, selective"
TRAINCHECK_UPDATES, TRAINCHECK_WARMUP, TRAINCHECK_ROUNDS = 40, 10, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Duration of the measurement of a workload, and goals for the cost of the sanitizer."""

    updates: int
    """Number of updates in each turn."""
    warm: int
    """Number of updates at the start of each turn that are not measured."""
    rounds: int
    sampled: float
    """Goal: largest ratio to the bare script with sampled tracing."""
    full: float = 1.5
    """Goal: largest ratio to the bare script with full tracing."""
    sampling: Mapping[str, float] = field(default_factory=dict[str, float])
    """Constants of `tracing.sampling` to replace, so that sampled tracing begins immediately."""


def loads(*, quick: bool) -> dict[str, Load]:
    """List the workloads of ``systems/script.py``.

    Sampled tracing begins after `INITIAL_UPDATES` fully traced updates. The turns of slow workloads are too short for
    that, so these workloads begin it after one update. Their measured updates lie between two searches for averages
    of the weights, which end soon after the first hundred updates of a run.
    """
    one_update = {"INITIAL_UPDATES": 1}
    return {
        "mlp": Load(updates=3000, warm=1500, rounds=2 if quick else 25, sampled=1.06),
        "gpt": Load(updates=90, warm=36, rounds=2 if quick else 10, sampled=1.01, full=1.04, sampling=one_update),
        "cnn": Load(updates=90, warm=36, rounds=2 if quick else 10, sampled=1.01, full=1.04, sampling=one_update),
    }


Reports = dict[str, list[Report]]


def script(load: str, updates: int) -> list[tuple[float, float]]:
    """Run the script in this process and return its recorded times: one per update, and one after the last update."""
    environment = {"BENCH_WORKLOAD": load, "BENCH_UPDATES": str(updates)}
    with mock.patch.dict(os.environ, environment):
        return runpy.run_path(str(SCRIPT), run_name="__main__")["times"]


def cost(times: list[tuple[float, float]], warm: int) -> Cost:
    """Return the mean cost of an update, without the first ``warm`` updates."""
    count = len(times) - 1 - warm
    return Cost(*((times[-1][clock] - times[warm][clock]) / count for clock in (0, 1)))


def contexts(
    reports: list[Report], constants: Mapping[str, float]
) -> dict[str, Callable[[], AbstractContextManager[None]]]:
    """Return a context manager that activates each system; the sanitizer appends its reports to ``reports``."""
    return {
        BARE: bare,
        SAMPLED: partial(watched, reports, **constants),
        LAB: partial(watched, reports, lab=True, **constants),
        FULL: partial(watched, reports, INITIAL_UPDATES=10**9, MAX_BATCHES=10**9),
        ANOMALY: anomaly,
    }


class Turns:
    """A clock for the script that lets the systems take turns within one run.

    The script reads the time at the start of every update; this is when one system can be replaced by the next.
    """

    def __init__(self, load: Load) -> None:
        self._load, self._clock, self._calls = load, time.perf_counter, 0
        self._new_reports: list[Report] = []
        systems = contexts(self._new_reports, load.sampling)
        self._order = [
            (system, systems[system]) for turn in range(load.rounds + 1) for system in rotate(list(systems), turn)
        ]
        self._running = ExitStack()
        self.reports: Reports = {system: [] for system in systems}

    def __call__(self) -> float:
        """Return the time, and switch to the next system if a turn has ended."""
        if sys._getframe(1).f_code.co_filename == str(SCRIPT):  # noqa: SLF001
            turn, index = divmod(self._calls, self._load.updates)
            if not index:
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
        """Return the mean cost of an update in each turn, without the first round."""
        count, costs = self._load.updates, {system: list[Cost]() for system in self.reports}
        for turn, (system, _) in enumerate(self._order):
            if turn >= len(self.reports):
                costs[system].append(cost(times[turn * count : (turn + 1) * count], self._load.warm))
        return costs


def compare(name: str, load: Load) -> tuple[SideBySide, Reports]:
    """Time the script under every system except TrainCheck; also return the sanitizer's reports."""
    turns = Turns(load)
    with mock.patch.object(time, "perf_counter", turns):
        times = script(name, load.updates * (load.rounds + 1) * len(turns.reports))
    return SideBySide(costs=turns.costs(times)), {name: reports for name, reports in turns.reports.items() if reports}


def keep_memory() -> None:
    """Keep the C library from returning memory to the system: addresses of large buffers change times by a tenth."""
    if sys.platform == "linux":
        for option in (-1, -3):  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD, of malloc.h
            ctypes.CDLL(None).mallopt(option, 1 << 30)


@contextmanager
def bare() -> Iterator[None]:
    """Run without the sanitizer."""
    yield


@contextmanager
def anomaly() -> Iterator[None]:
    """Let PyTorch search for NaN in every backward pass."""
    with torch.autograd.set_detect_anomaly(True):
        yield


@contextmanager
def watched(reports: list[Report], *, lab: bool = False, **constants: float) -> Iterator[None]:
    """Watch with all failures of the catalogue, with replaced constants of `tracing.sampling`."""
    folder = Path(tempfile.gettempdir()) / f"trueloop-bench-{os.getpid()}"
    writer = LiveWriter(folder, {"name": "script.py"}) if lab else None
    with mock.patch.multiple(sampling, **constants) if constants else bare():
        watch = watching.Watch(
            [WatchedFailure(entry.failure, entry.slug) for entry in catalogue().values()], observer=writer
        )
        with watch:
            yield
        reports.append(watch.report())


def reported_costs(reports: Reports) -> dict[str, Any]:
    """Return the costs that the sanitizer itself reports, in seconds per update of a turn, and its findings."""
    for system_reports in reports.values():
        assert not any(each.problems for each in system_reports), system_reports[-1].problems
    return {
        system: {
            "seconds_per_update": Spread.of([each.overhead_s / max(1, each.updates) for each in system_reports]),
            "share": Spread.of([each.overhead_s / each.seconds for each in system_reports]),
            "updates_in_full": system_reports[-1].updates_traced,
            "findings": sorted({finding.code for each in system_reports for finding in each.findings}),
        }
        for system, system_reports in reports.items()
    }


class TrainCheck:
    """TrainCheck as documented: trace a reference run, infer invariants, then trace only what the invariants need."""

    def __init__(self, venv: Path, load: str) -> None:
        self._bin, self._load = venv / "bin", load
        self._folder = Path(tempfile.mkdtemp(prefix="traincheck-"))
        for source in (SCRIPT, SCRIPT.parents[1] / "workloads.py"):
            shutil.copy(source, self._folder)

    def version(self) -> str:
        """Return the installed version."""
        code = "import importlib.metadata as m; print(m.version('traincheck'))"
        return self._call("python", "-c", code).strip()

    def compare(self, rounds: int) -> SideBySide:
        """Time the script in TrainCheck's environment: bare, and with both kinds of tracing."""
        self.trace("reference")
        self._call("traincheck-infer", "-f", "reference", "-o", "invariants.json")
        runs: Mapping[str, Callable[[], Cost]] = {
            BARE: self.bare,
            REFERENCE: partial(self.trace, "again"),
            SELECTIVE: partial(self.trace, "selective", "-i", "invariants.json"),
        }
        return interleave(runs, rounds)

    def bare(self) -> Cost:
        """Run the script without TrainCheck."""
        self._call("python", "script.py")
        return self._cost()

    def trace(self, output: str, *options: str) -> Cost:
        """Run the script with TrainCheck's instrumentation; ``options`` are further options of traincheck-collect."""
        shutil.rmtree(self._folder / output, ignore_errors=True)
        arguments = ("-a", "--pyscript", "script.py", "--models-to-track", "model", "--output-dir", output, *options)
        self._call("traincheck-collect", *arguments)
        return self._cost()

    def _cost(self) -> Cost:
        return cost(json.loads((self._folder / "times.json").read_text()), TRAINCHECK_WARMUP)

    def _call(self, program: str, *arguments: str) -> str:
        (self._folder / "times.json").unlink(missing_ok=True)
        environment = os.environ | {
            "BENCH_WORKLOAD": self._load, "BENCH_UPDATES": str(TRAINCHECK_UPDATES),
            "BENCH_TIMES": str(self._folder / "times.json"), "PATH": f"{self._bin}{os.pathsep}{os.environ['PATH']}",
        }  # fmt: skip
        command = [str(self._bin / program), *arguments]
        completed = subprocess.run(
            command, cwd=self._folder, env=environment, capture_output=True, text=True, check=True
        )
        return completed.stdout


def show(name: str, found: SideBySide, reported: Mapping[str, Any]) -> None:
    """Print one workload's table."""
    rows = [
        [
            system,
            f"{found.cost(system).median * 1e6:,.0f}",
            f"{(found.cost(system).median - found.cost(BARE).median) * 1e6:+,.1f}",
            str(found.ratio(system, BARE)),
            str(found.ratio(system, BARE, "cpu")),
            f"{reported[system]['seconds_per_update'].median * 1e6:,.1f}" if system in reported else "",
        ]
        for system in found.costs
    ]
    columns = ["system", "µs per update", "more", "/ bare, wall", "/ bare, CPU", "reported by itself"]
    table(f"{name}: median within a round (middle 80 % of the rounds)", columns, rows)


def content(found: SideBySide) -> dict[str, Any]:
    """Return the figures for the result file."""
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
    parser.add_argument("--quick", action="store_true", help="about half a minute; rough numbers, not saved")
    parser.add_argument(
        "--traincheck",
        type=Path,
        default=os.environ.get("TRAINCHECK"),
        help="a virtual environment with torch and traincheck in it; also by the variable TRAINCHECK",
    )
    parser.add_argument(
        "--only", choices=["mlp", "gpt", "cnn"], help="measure one workload; the figures of the others are kept"
    )
    return parser.parse_args()


def main() -> None:
    """Measure, print and save."""
    arguments = options()
    keep_memory()
    found: dict[str, Any] = earlier_results() if arguments.only and not arguments.quick else {}
    for name, load in loads(quick=arguments.quick).items():
        if arguments.only not in (None, name):
            continue
        costs, reports = compare(name, load)
        reported = reported_costs(reports)
        show(name, costs, reported)
        for system, goal in ((SAMPLED, load.sampled), (LAB, load.sampled), (FULL, load.full)):
            wall, cpu = (costs.ratio(system, BARE, clock) for clock in ("wall", "cpu"))
            line = f"{name}: {system} / bare = {wall} by wall, {cpu} by CPU time, goal {goal}"
            console.print(f"{verdict(wall.median, goal)} {verdict(cpu.median, goal)}  {line}")
        found[name] = {**found.get(name, {}), "systems": content(costs), "reported_by_itself": reported}
        if arguments.traincheck:
            traincheck = TrainCheck(arguments.traincheck.resolve(), name)
            traced = traincheck.compare(1 if arguments.quick else TRAINCHECK_ROUNDS)
            show(f"{name}, TrainCheck {traincheck.version()} in its own environment", traced, {})
            found[name] |= {
                "traincheck": content(traced),
                "traincheck_version": traincheck.version(),
                "traincheck_date": machine()["date"],
            }
    if not arguments.traincheck:
        console.print("TrainCheck was not measured: pass its environment with --traincheck.")
    settings = {"loads": {name: load_settings(load) for name, load in loads(quick=arguments.quick).items()}}
    write("watch", {"settings": settings, "found": found}, quick=arguments.quick or len(found) < len(settings["loads"]))


def earlier_results() -> dict[str, Any]:
    """Return the earlier results of every workload if they were measured on this machine with the same versions."""
    try:
        earlier = json.loads((RESULTS / "watch.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    current, names = machine(), ("cpu", "system", "python", "versions")
    return earlier["found"] if all(earlier["machine"][name] == current[name] for name in names) else {}


def load_settings(load: Load) -> dict[str, float]:
    """Return the settings of a workload."""
    return {"updates": load.updates, "warm": load.warm, "rounds": load.rounds}


if __name__ == "__main__":
    main()
