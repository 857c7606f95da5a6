"""Commands that the simulator page sends to its worker: one strictly validated record for each value of ``do``."""

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
MAX_UPDATES: Final = 10_000_000  # more than any run makes


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Write a script and start it."""

    config: Simulation = field(default_factory=Simulation)
    bugs: Annotated[tuple[Code, ...], Bounds(0, 8)] = ()
    points: Annotated[tuple[tuple[Coordinate, Coordinate, Label], ...], Bounds(0, 200)] = ()
    train: bool = False
    """True to train immediately; otherwise, the run is paused before its first batch."""
    request: Count = 0
    """Number that identifies this request in the reply, since a later one may replace it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Continue the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """Pause the run before the next batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Make some updates, then pause."""

    updates: Annotated[int, Bounds(1, 10_000)] = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RunUntil:
    """Continue until the run has made the given number of updates."""

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
    """Remove the nearest training point."""

    x: Coordinate
    y: Coordinate


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowNeurons:
    """Include the maps of the hidden neurons in frames, or stop including them."""

    neurons: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunScenario:
    """Run an experiment and check its claim."""

    name: Literal[*SCENARIO_NAMES]  # pyright: ignore[reportInvalidTypeForm]


@dataclass(frozen=True, slots=True, kw_only=True)
class AcknowledgeFrame:
    """Acknowledge that all frames up to this one are painted."""

    frame: Count


Command = (
    Start
    | Run
    | Pause
    | Step
    | RunUntil
    | EditWeight
    | AddPoint
    | RemovePoint
    | ShowNeurons
    | RunScenario
    | AcknowledgeFrame
)
KINDS: Final[Mapping[str, type[Any]]] = {
    "start": Start,
    "run": Run,
    "pause": Pause,
    "step": Step,
    "run_until": RunUntil,
    "edit": EditWeight,
    "add_point": AddPoint,
    "remove_point": RemovePoint,
    "show_neurons": ShowNeurons,
    "scenario": RunScenario,
    "ack": AcknowledgeFrame,
}


def parse_command(message: Mapping[str, Any]) -> Command:
    """Parse one message.

    Raises:
        InvalidConfig: the message is not a valid command.
    """
    do = message.get("do")
    command_type = KINDS.get(do) if isinstance(do, str) else None
    if command_type is None:
        raise InvalidConfig(f"do is {str(do)[:60]!r}.", fix=f"It must be one of {', '.join(KINDS)}.")
    return parse_record(command_type, {name: value for name, value in message.items() if name != "do"})
