"""What each component costs: the lines it adds, and the time, as `benchmarks/components.py` has measured it.

The benchmark writes the figures to costs.json in this folder.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Final

from trueloop.lab.teaching.production.components import COMPONENTS
from trueloop.lab.teaching.production.program import write
from trueloop.lab.teaching.production.selection import NAMES, Selection, selected

MODELS: Final[Mapping[str, str]] = {"mlp": "MLP", "cnn": "small CNN"}
"""The models it was measured on, as the figures and as people call them."""
CLOCKS: Final = ("wall", "cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """Time per update over that of the minimal loop in the same round: the median, and the middle 80 %."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What one component costs."""

    name: str
    """As the benchmark calls it: a component, "precision fp16", "everything, in bf16"."""
    title: str
    lines: int
    """Lines that its text has more than the minimal loop's; blank ones are not counted."""
    ratios: Mapping[tuple[str, str], Ratio]
    """(model, clock) -> ratio, in the order of `MODELS` and `CLOCKS`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """The table, and where its figures come from."""

    rows: tuple[Row, ...]
    measured_on: str
    """One sentence: machine, versions, date, how."""


@cache
def costs() -> Costs:
    """Return the figures that came with this version of trueloop."""
    data = json.loads(resources.files(__name__.rpartition(".")[0]).joinpath("costs.json").read_text(encoding="utf-8"))
    found = data["found"]
    names = [name for name in next(iter(found.values())) if name != "minimal loop"]
    names.sort(key=_place)
    rows = tuple(_row(name, found) for name in names)
    return Costs(rows=rows, measured_on=_measured_on(data["machine"], data["settings"]))


def _place(name: str) -> int:
    first = name.split(",", maxsplit=1)[0].split(" ", maxsplit=1)[0]
    return NAMES.index(first) if first in NAMES else len(NAMES)


def _row(name: str, found: Mapping[str, Any]) -> Row:
    first, _, kind = name.partition(" ")
    if first in NAMES:
        title = COMPONENTS[first].title + (f", {kind}" if kind else "")
        choice = selected(first, precision="fp16" if kind == "fp16" else "bf16")
    else:
        title, choice = name.capitalize(), selected(*NAMES)
    ratios = {(model, clock): Ratio(**found[model][name][f"{clock}_ratio"]) for model in MODELS for clock in CLOCKS}
    return Row(name=name, title=title, lines=_lines(choice) - _lines(Selection()), ratios=ratios)


def _lines(selection: Selection) -> int:
    return sum(bool(line.strip()) for line in write(selection).text.splitlines())


def _measured_on(machine: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    rounds = " and ".join(str(each) for each in settings["rounds"].values())
    return (
        f"Measured on {machine['cpu']}, one thread, Python {machine['python']}, torch {machine['versions']['torch']}, "
        f"{machine['date']}: {rounds} rounds in turns, epochs of {settings['examples']:,} examples in batches of "
        f"{settings['batch']}."
    )
