"""What the simulator's page may say to its worker, one record for each ``do``; read strictly by `ground.asked`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

from trueloop.core.errors import InvalidConfig
from trueloop.core.untrusted_input import Bounds, parse_record
from trueloop.lab.teaching.scenarios import SCENARIO_NAMES
from trueloop.lab.teaching.simulation import Simulation

Coordinate = Annotated[float, Bounds(-100.0, 100.0)]
Label = Annotated[int, Bounds(0, 9)]
Code = Annotated[str, Bounds(6, 6)]
Index = Annotated[int, Bounds(0, 63)]
Count = Annotated[int, Bounds(0, 10_000_000)]
MAX_UPDATES: Final = 10_000_000  # updates; no run has as many


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """Write a script, and hold it before its first batch."""

    config: Simulation = field(default_factory=Simulation)
    bugs: Annotated[tuple[Code, ...], Bounds(0, 8)] = ()
    points: Annotated[tuple[tuple[Coordinate, Coordinate, Label], ...], Bounds(0, 200)] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """Stop before the next batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Go on for some updates."""

    updates: Annotated[int, Bounds(1, 10_000)] = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RunUntil:
    """Go on until this many updates are made."""

    update: Count = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EditWeight:
    """Set one weight."""

    parameter: Annotated[str, Bounds(1, 60)]
    index: Annotated[tuple[Index, ...], Bounds(1, 2)]
    value: Annotated[float, Bounds(-1e6, 1e6)]


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPoint:
    """Add a training point."""

    x: Coordinate
    y: Coordinate
    label: Label


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovePoint:
    """Take the nearest one away."""

    x: Coordinate
    y: Coordinate


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowNeurons:
    """Show the maps of the hidden neurons, too, or show them no more."""

    neurons: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunScenario:
    """Run an experiment, and check its claim."""

    name: Literal[*SCENARIO_NAMES]  # pyright: ignore[reportInvalidTypeForm]


@dataclass(frozen=True, slots=True, kw_only=True)
class AcknowledgeFrame:
    """All frames up to this one are painted."""

    frame: Count


Command = Begin | Run | Pause | Step | RunUntil | EditWeight | AddPoint | RemovePoint | ShowNeurons | RunScenario | AcknowledgeFrame
KINDS: Final[Mapping[str, type[Any]]] = {
    "begin": Begin, "run": Run, "pause": Pause, "step": Step, "until": RunUntil, "edit": EditWeight, "point": AddPoint,
    "unpoint": RemovePoint, "look": ShowNeurons, "scenario": RunScenario, "ack": AcknowledgeFrame,
}  # fmt: skip


def parse_command(message: Mapping[str, Any]) -> Command:
    """Read one message.

    Raises:
        InvalidConfig: it says nothing of the kind.
    """
    do = message.get("do")
    kind = KINDS.get(do) if isinstance(do, str) else None
    if kind is None:
        raise InvalidConfig(f"do is {str(do)[:60]!r}.", fix=f"It must be one of {', '.join(KINDS)}.")
    return parse_record(kind, {name: value for name, value in message.items() if name != "do"})
