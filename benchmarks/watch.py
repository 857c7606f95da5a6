"""What watching costs: time per update of one training script, bare and under each tool that looks for silent bugs.

Every tool runs the same unmodified ``systems/script.py``, each time in a process of its own, in rotating order. All but
TrainCheck's are forked from one that has imported everything and trained nothing: where classes were patched once,
Python specialises its bytecode anew, and a program that was watched before is faster by a hundredth than it ever is by
itself. TrainCheck has requirements of its own and replaces the program's source, so it is measured only where it is
installed apart: ``python -m venv X && X/bin/pip install torch traincheck``, then ``python benchmarks/watch.py
--traincheck X``, or ``TRAINCHECK=X make bench``.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import runpy
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
from measure import RESULTS, Cost, SideBySide, Spread, console, interleave, machine, table, verdict, write

from trueloop.catalogue.load import catalogue
from trueloop.engines.store.live.writer import LiveWriter
from trueloop.engines.watch import levels
from trueloop.engines.watch import watch as watching
from trueloop.engines.watch.judge import Watched
from trueloop.ground.findings import Report

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
    warm: int
    rounds: int
    steady: float
    """The largest ratio the project allows itself."""
    full: float = 1.5


def loads(*, quick: bool) -> dict[str, Load]:
    """List the workloads of ``systems/script.py``.

    The steady state begins where the first 64 updates in full are spent, after about 250.
    """
    few = 4 if quick else 1
    return {
        "mlp": Load(updates=6000 // few, warm=1500 // few, rounds=3 if quick else 9, steady=1.02),
        "gpt": Load(updates=460 // few, warm=260 // few, rounds=2 if quick else 5, steady=1.005),
        "cnn": Load(updates=460 // few, warm=260 // few, rounds=2 if quick else 5, steady=1.005),
    }


class Words(NamedTuple):
    """What a watch's report says of itself; it comes from another process."""

    cost_s: float
    seconds: float
    updates: int
    in_full: int
    findings: tuple[str, ...]
    problems: tuple[str, ...]

    @classmethod
    def of(cls, report: Report) -> Words:
        """Take out of a report what is compared."""
        codes = tuple(finding.code for finding in report.findings)
        return cls(report.cost_s, report.seconds, report.updates, report.watched, codes, report.problems)


Told = dict[str, list[Words]]


def script(load: str, updates: int) -> list[tuple[float, float]]:
    """Run the script in this process; return the times it noted, one per update and one behind the last."""
    words = {"BENCH_WORKLOAD": load, "BENCH_UPDATES": str(updates)}
    with mock.patch.dict(os.environ, words):
        return runpy.run_path(str(SCRIPT), run_name="__main__")["times"]


def cost(times: list[tuple[float, float]], warm: int) -> Cost:
    """Return the mean cost of an update after the first ones."""
    count = len(times) - 1 - warm
    return Cost(*((times[-1][clock] - times[warm][clock]) / count for clock in (0, 1)))


def run(name: str, load: Load, system: str) -> tuple[Cost, list[Words]]:
    """Time the script under one of the systems; also return what a watch says."""
    told: list[Report] = []
    contexts = {
        BARE: bare,
        STEADY: partial(watched, told),
        LAB: partial(watched, told, lab=True),
        FULL: partial(watched, told, in_full=True),
        ANOMALY: anomaly,
    }
    with contexts[system]():
        times = script(name, load.updates)
    return cost(times, load.warm), list(map(Words.of, told))


def serve(requests: Connection) -> None:
    """Do so whenever it is asked for, each time in another process; here few frames lie below the script's own."""
    keep_memory()
    for request in iter(requests.recv, None):
        child = os.fork()
        if not child:
            requests.send(run(*request))
            os._exit(0)
        if os.waitpid(child, 0)[1]:
            requests.send(None)


def keep_memory() -> None:
    """Let the C library give no memory back: whether a large buffer lies where it would is luck, worth a tenth."""
    if sys.platform == "linux":
        for what in (-1, -3):  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD, of malloc.h
            ctypes.CDLL(None).mallopt(what, 1 << 30)


class Apart:
    """Asks for runs, each in a process that has done nothing before."""

    def __init__(self) -> None:
        self._asking, answering = Pipe()
        if not os.fork():
            serve(answering)
            os._exit(0)

    def run(self, name: str, load: Load, system: str, told: list[Words]) -> Cost:
        """Return what an update cost; a watch's words go to the others."""
        self._asking.send((name, load, system))
        answer = self._asking.recv()
        if answer is None:
            sys.exit(f"{system} has failed on {name}, see above.")
        told.extend(answer[1])
        return answer[0]

    def end(self) -> None:
        """Ask no more."""
        self._asking.send(None)


@contextmanager
def bare() -> Iterator[None]:
    """Nobody watches."""
    yield


@contextmanager
def anomaly() -> Iterator[None]:
    """Let torch look for NaN in every backward."""
    with torch.autograd.set_detect_anomaly(True):
        yield


@contextmanager
def watched(told: list[Report], *, in_full: bool = False, lab: bool = False) -> Iterator[None]:
    """Watch with the whole catalogue."""
    folder = Path(tempfile.gettempdir()) / f"trueloop-bench-{os.getpid()}"
    audience = LiveWriter(folder, {"name": "script.py"}) if lab else None
    many = {"FIRST": 10**9, "MOST_BATCHES": 10**9} if in_full else {}
    with mock.patch.multiple(levels, **many) if many else bare():
        watch = watching.Watch(
            [Watched(entry.failure, entry.slug) for entry in catalogue().values()], audience=audience
        )
        with watch:
            yield
        told.append(watch.report())


def compare(name: str, load: Load, apart: Apart) -> tuple[SideBySide, Told]:
    """Time everybody but TrainCheck; also return what the watches said."""
    told: Told = {system: [] for system in (BARE, STEADY, LAB, FULL, ANOMALY)}
    runs = {system: partial(apart.run, name, load, system, words) for system, words in told.items()}
    return interleave(runs, load.rounds), {system: words for system, words in told.items() if words}


def own_words(told: Told) -> dict[str, Any]:
    """Return the cost as the reports tell it, in seconds per update over the whole run, and what they found."""
    for words in told.values():
        assert not any(each.problems for each in words), words[-1].problems
    return {
        system: {
            "seconds_per_update": Spread.of([each.cost_s / max(1, each.updates) for each in words]),
            "share": Spread.of([each.cost_s / each.seconds for each in words]),
            "updates_in_full": words[-1].in_full,
            "findings": sorted({code for each in words for code in each.findings}),
        }
        for system, words in told.items()
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
    asked, apart = options(), Apart()
    found: dict[str, Any] = earlier() if asked.only and not asked.quick else {}
    for name, load in loads(quick=asked.quick).items():
        if asked.only not in (None, name):
            continue
        side, told = compare(name, load, apart)
        said = own_words(told)
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
    apart.end()
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
