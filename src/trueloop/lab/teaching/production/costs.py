"""Costs of each component: the lines it adds, and the time, memory and disk that `benchmarks/components.py` measured.

The benchmark writes its measurements to costs.json in this folder.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Final

from trueloop.lab.teaching.production.components import COMPONENTS
from trueloop.lab.teaching.production.distributed import TITLE, distributed_program
from trueloop.lab.teaching.production.program import Program, production_program
from trueloop.lab.teaching.production.selection import NAMES, Selection, select

MODELS: Final[Mapping[str, str]] = {"mlp": "MLP", "cnn": "small CNN"}
"""Measured models: key in costs.json -> name on the page."""
CLOCKS: Final = ("wall", "cpu")
MINIMAL: Final = "minimal loop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """Time per update divided by that of the minimal loop in the same round: median, 10th and 90th percentile."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Costs of one component."""

    name: str
    """Name in the benchmark: a component, "precision fp16", "everything, in bf16" or "distributed"."""
    title: str
    lines: int
    """Number of non-blank lines that the component adds to the minimal loop."""
    ratios: Mapping[tuple[str, str], Ratio]
    """(model, clock) -> ratio, in the order of `MODELS` and `CLOCKS`."""
    memory_bytes: Mapping[str, int]
    """Model -> peak of the tensors, minus that of the minimal loop; negative if the component saves memory."""
    disk_bytes: Mapping[str, int]
    """Model -> size of the files that the run leaves behind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """The table of costs, and the origin of its measurements."""

    rows: tuple[Row, ...]
    measured_on: str
    """A sentence with machine, versions, date and method."""


@cache
def costs() -> Costs:
    """Return the measurements packaged with this version of trueloop."""
    data = json.loads(resources.files(__name__.rpartition(".")[0]).joinpath("costs.json").read_text(encoding="utf-8"))
    measured = data["found"]
    names = [name for name in next(iter(measured.values())) if name != MINIMAL]
    rows = tuple(_row(name, measured) for name in sorted(names, key=_row_order))
    return Costs(rows=rows, measured_on=_measured_on(data["machine"], data["settings"], data["added"]))


def _row_order(name: str) -> int:
    component = name.split(",", maxsplit=1)[0].split(" ", maxsplit=1)[0]
    return NAMES.index(component) if component in NAMES else len(NAMES)


def _row(name: str, measured: Mapping[str, Any]) -> Row:
    component, _, variant = name.partition(" ")
    if name == "distributed":
        title, program = TITLE, distributed_program()
    elif component in NAMES:
        title = COMPONENTS[component].title + (f", {variant}" if variant else "")
        program = production_program(select(component, precision="fp16" if variant == "fp16" else "bf16"))
    else:
        title, program = name.capitalize(), production_program(select(*NAMES))
    ratios = {(model, clock): Ratio(**measured[model][name][f"{clock}_ratio"]) for model in MODELS for clock in CLOCKS}
    return Row(
        name=name,
        title=title,
        lines=_lines(program) - _lines(production_program(Selection())),
        ratios=ratios,
        memory_bytes={
            model: measured[model][name]["memory_bytes"] - measured[model][MINIMAL]["memory_bytes"] for model in MODELS
        },
        disk_bytes={model: measured[model][name]["disk_bytes"] for model in MODELS},
    )


def _lines(program: Program) -> int:
    return sum(bool(line.strip()) for line in program.text.splitlines())


def _measured_on(machine: Mapping[str, Any], settings: Mapping[str, Any], added: Mapping[str, str]) -> str:
    rounds = " and ".join(str(each) for each in settings["rounds"].values())
    return (
        f"Measured on {machine['cpu']}, one process and thread, Python {machine['python']}, "
        f"torch {machine['versions']['torch']}, {machine['date']}: {rounds} alternating rounds, "
        f"epochs of {settings['examples']:,} examples in batches of {settings['batch']}."
        + "".join(f" {name.capitalize()}: {date}, in turn with the minimal loop." for name, date in added.items())
    )
