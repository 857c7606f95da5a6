"""Time several systems side by side, and save the results with a description of the machine.

The ratio of two times that were measured minutes apart on a shared machine is unreliable. Therefore every round runs
each system once, in rotating order, and only ratios *within* a round are used; their median over the rounds is reported
with its spread.
"""

from __future__ import annotations

import argparse
import gc
import importlib.metadata
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from torch.utils.data import Dataset

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("trueloop", "torch", "numpy", "lightning", "accelerate", "transformers")
console = Console(width=max(150, Console().width))

torch.set_num_threads(1)  # on a busy two-core machine, times of two threads depend on other processes


class Cost(NamedTuple):
    """Mean cost of an update over a run."""

    wall: float
    """Seconds of wall time, which other processes of the machine also affect."""
    cpu: float
    """Seconds of CPU time of this process, which vary less on a shared machine."""


class Clock:
    """Records the time on request; the only clock of the benchmarks, the same for every system."""

    def __init__(self) -> None:
        self.wall: list[float] = []
        self.cpu: list[float] = []

    def tick(self) -> None:
        """Record both times, in less than a microsecond."""
        self.wall.append(time.perf_counter())
        self.cpu.append(time.process_time())

    def per_tick(self, warm: int) -> Cost:
        """Return the mean cost between two ticks, without the first ``warm`` ticks."""
        count = len(self.wall) - 1 - warm
        return Cost((self.wall[-1] - self.wall[warm]) / count, (self.cpu[-1] - self.cpu[warm]) / count)


class Batches:
    """Prepared batches, repeated up to a length, with a clock that ticks whenever a batch is read.

    A system that reads one batch ahead shifts all its ticks equally, so that their differences remain correct.
    """

    def __init__(self, batches: Sequence[Any], length: int) -> None:
        self.batches = batches
        self.length = length
        self.clock = Clock()

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[Any]:
        for index in range(self.length):
            self.clock.tick()
            yield self.batches[index % len(self.batches)]


class Indexed(Dataset[Any]):
    """The same batches with the same clock, by index: for systems that need a DataLoader (``batch_size=None``)."""

    def __init__(self, source: Batches, change: Callable[[Any], Any] = lambda batch: batch) -> None:
        self.batches = [change(batch) for batch in source.batches]
        self.length = source.length
        self.clock = source.clock

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        self.clock.tick()
        return self.batches[index % len(self.batches)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Median over the rounds, and the range of the middle 80 % of them."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Summarise values, one per round."""
        if len(values) < 3:
            return cls(median=statistics.median(values), low=min(values), high=max(values))
        tenths = statistics.quantiles(values, n=10, method="inclusive")
        return cls(median=statistics.median(values), low=tenths[0], high=tenths[-1])

    def __str__(self) -> str:
        return f"{self.median:.3f} [dim]({self.low:.2f}…{self.high:.2f})[/]"


@dataclass(frozen=True, slots=True, kw_only=True)
class SideBySide:
    """Cost of an update of every system in every round."""

    costs: Mapping[str, Sequence[Cost]]

    def cost(self, system: str, clock: str = "wall") -> Spread:
        """Return the seconds per update."""
        return Spread.of([getattr(cost, clock) for cost in self.costs[system]])

    def ratio(self, system: str, reference: str, clock: str = "wall") -> Spread:
        """Return the time relative to the reference, compared within each round."""
        pairs = zip(self.costs[system], self.costs[reference], strict=True)
        return Spread.of([getattr(cost, clock) / getattr(reference_cost, clock) for cost, reference_cost in pairs])


def interleave(runs: Mapping[str, Callable[[], Cost]], rounds: int) -> SideBySide:
    """Run every system once per round, each round starting with another one.

    Args:
        runs: system -> function that trains once and returns the mean cost of an update.
        rounds: number of measured rounds; one more round, which is not measured, runs first.
    """
    names = list(runs)
    costs: dict[str, list[Cost]] = {name: [] for name in names}
    for turn in range(-1, rounds):
        for name in rotate(names, turn):
            gc.collect()
            cost = runs[name]()
            if turn >= 0:
                costs[name].append(cost)
    return SideBySide(costs=costs)


def rotate(names: Sequence[str], turn: int) -> Sequence[str]:
    """Return the names rotated by ``turn`` positions, so that all names are equally often at each position."""
    start = turn % len(names)
    return [*names[start:], *names[:start]]


def verdict(value: float, goal: float) -> str:
    """Return PASS if the value is at most the goal, else MISS."""
    return "[green]PASS[/]" if value <= goal else "[red]MISS[/]"


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table; the first column is text, the others are numbers."""
    rich_table = Table(title=title, title_justify="left", title_style="bold")
    for index, column in enumerate(columns):
        rich_table.add_column(column, justify="left" if index == 0 else "right")
    for row in rows:
        rich_table.add_row(*row)
    console.print(rich_table)


def options(doc: str | None, flags: Mapping[str, str] | None = None) -> argparse.Namespace:
    """Parse the options that all benchmarks share, and further flags: name -> help."""
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="about 20 seconds; rough numbers, not saved")
    for name, description in (flags or {}).items():
        parser.add_argument(f"--{name}", action="store_true", help=description)
    return parser.parse_args()


def write(name: str, found: Mapping[str, Any], *, quick: bool) -> None:
    """Write the result as JSON: to results/ for a full run, to a temporary folder for a quick one."""
    folder = Path(tempfile.mkdtemp(prefix="trueloop-bench-")) if quick else RESULTS
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.json"
    content = {"benchmark": name, "machine": machine(), **found}
    path.write_text(json.dumps(content, indent=1, default=plain) + "\n")
    console.print(f"written to {path}\n")


def plain(value: Any) -> Any:
    """Convert a `Spread` to a JSON value."""
    if isinstance(value, Spread):
        return {name: float(f"{number:.6g}") for name, number in asdict(value).items()}
    raise TypeError(f"cannot write {type(value).__name__} as JSON")


def machine() -> dict[str, Any]:
    """Describe the machine and its software."""
    return {
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load_average": os.getloadavg()[0],
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES if installed(name)},
        "date": time.strftime("%Y-%m-%d"),
    }


def cpu_model() -> str:
    """Return the model name of the processor, with its family."""
    path = Path("/proc/cpuinfo")
    if not path.exists():
        return platform.processor() or platform.machine()
    pairs = [line.split(":", 1) for line in path.read_text().splitlines() if ":" in line]
    facts = {key.strip(): value.strip() for key, value in pairs}
    return f"{facts.get('model name', platform.machine())}, family {facts.get('cpu family', 'unknown')}"


def installed(package: str) -> bool:
    """Return True if a package is installed, without importing it."""
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
