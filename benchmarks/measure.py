"""Time several systems side by side, and write down what was found and on what.

A ratio of two times taken minutes apart on a shared machine says little. Here every round runs each system once, in an
order that rotates, and only the ratio *within* a round counts; the median over the rounds is reported with its spread.
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

torch.set_num_threads(1)  # two threads on a busy two-core machine measure the neighbours


class Cost(NamedTuple):
    """What one update took, on average over a run."""

    wall: float
    """Seconds by the clock on the wall: what people wait for, neighbours on the machine included."""
    cpu: float
    """Seconds this process had a processor: the steadier number where the machine is shared."""


class Clock:
    """Records the time on request; the only clock of the benchmarks, the same for every system."""

    def __init__(self) -> None:
        self.wall: list[float] = []
        self.cpu: list[float] = []

    def tick(self) -> None:
        """Note both times, in less than a microsecond."""
        self.wall.append(time.perf_counter())
        self.cpu.append(time.process_time())

    def per_tick(self, warm: int) -> Cost:
        """Mean cost from one tick to the next, leaving out the first ``warm``."""
        count = len(self.wall) - 1 - warm
        return Cost((self.wall[-1] - self.wall[warm]) / count, (self.cpu[-1] - self.cpu[warm]) / count)


class Batches:
    """Ready-made batches, cycled to a length, on a clock that ticks whenever one is drawn.

    A system that draws one batch ahead shifts all its ticks alike, so their differences stay right.
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
    """The same batches on the same clock, by index: for those who insist on a DataLoader (``batch_size=None``)."""

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
    """Median over the rounds, and the range that holds the middle 80 % of them."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Summarise one number per round."""
        if len(values) < 3:
            return cls(median=statistics.median(values), low=min(values), high=max(values))
        tenths = statistics.quantiles(values, n=10, method="inclusive")
        return cls(median=statistics.median(values), low=tenths[0], high=tenths[-1])

    def __str__(self) -> str:
        return f"{self.median:.3f} [dim]({self.low:.2f}…{self.high:.2f})[/]"


@dataclass(frozen=True, slots=True, kw_only=True)
class SideBySide:
    """What an update cost every system in every round."""

    costs: Mapping[str, Sequence[Cost]]

    def cost(self, system: str, clock: str = "wall") -> Spread:
        """Seconds per update."""
        return Spread.of([getattr(cost, clock) for cost in self.costs[system]])

    def ratio(self, system: str, reference: str, clock: str = "wall") -> Spread:
        """How many times as long as the reference, compared within each round."""
        pairs = zip(self.costs[system], self.costs[reference], strict=True)
        return Spread.of([getattr(mine, clock) / getattr(its, clock) for mine, its in pairs])


def interleave(runs: Mapping[str, Callable[[], Cost]], rounds: int) -> SideBySide:
    """Run every system once per round, each round starting with another one.

    Args:
        runs: system -> a function that trains once and returns what an update cost.
        rounds: how often everybody runs; one more round is run first and thrown away.
    """
    names = list(runs)
    costs: dict[str, list[Cost]] = {name: [] for name in names}
    for turn in range(-1, rounds):
        for name in rotated(names, turn):
            gc.collect()
            cost = runs[name]()
            if turn >= 0:
                costs[name].append(cost)
    return SideBySide(costs=costs)


def rotated(names: Sequence[str], turn: int) -> Sequence[str]:
    """Return the same names in another order each turn: each comes first, second and so on as often as the others."""
    start = turn % len(names)
    return [*names[start:], *names[:start]]


def verdict(value: float, goal: float) -> str:
    """PASS when the value is at most the goal."""
    return "[green]PASS[/]" if value <= goal else "[red]MISS[/]"


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print one table; the first column is text, the rest are numbers."""
    drawn = Table(title=title, title_justify="left", title_style="bold")
    for place, column in enumerate(columns):
        drawn.add_column(column, justify="left" if place == 0 else "right")
    for row in rows:
        drawn.add_row(*row)
    console.print(drawn)


def options(doc: str | None, flags: Mapping[str, str] | None = None) -> argparse.Namespace:
    """Read the command line every benchmark shares, and flags of its own: name -> help."""
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="about 20 seconds; rough numbers, nothing kept")
    for name, words in (flags or {}).items():
        parser.add_argument(f"--{name}", action="store_true", help=words)
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
    """Turn a Spread into something JSON knows."""
    if isinstance(value, Spread):
        return {name: float(f"{number:.6g}") for name, number in asdict(value).items()}
    raise TypeError(f"cannot write {type(value).__name__} as JSON")


def machine() -> dict[str, Any]:
    """Describe where the numbers come from."""
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
    """Return the processor's own name for itself, with its family where the name says little."""
    path = Path("/proc/cpuinfo")
    if not path.exists():
        return platform.processor() or platform.machine()
    pairs = [line.split(":", 1) for line in path.read_text().splitlines() if ":" in line]
    facts = {key.strip(): value.strip() for key, value in pairs}
    return f"{facts.get('model name', platform.machine())}, family {facts.get('cpu family', 'unknown')}"


def installed(package: str) -> bool:
    """Tell whether a package is there, without importing it."""
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
