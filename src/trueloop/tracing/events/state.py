"""Graphs in memory, saved states, and trouble."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from trueloop.core.findings import CodePosition, SourceLocation
from trueloop.tracing.events.event import Event, Ref, Refs


@dataclass(slots=True, kw_only=True, eq=False)
class GraphsAlive(Event):
    """RARE. Graphs of past updates are in memory, after the garbage collector ran; told when their number grew."""

    count: int
    oldest_update: int
    """The update the oldest one was made at."""
    holders: tuple[str, ...]
    """Who holds them, as far as it was found: "losses[*] (local of train, train.py)"."""
    stored_at: SourceLocation | None = None
    """The line that puts them there, where one was found in the source."""
    parameter: str = ""
    """The parameter that is computed from those of past updates; "" = the graphs are those of outputs."""


@dataclass(slots=True, kw_only=True, eq=False)
class GraphsRetained(Event):
    """RARE. A line retains the graph of every backward, and those that are gone were never run backward again."""

    count: int
    """Graphs that died unused."""


@dataclass(slots=True, kw_only=True, eq=False)
class StateDictCreated(Event):
    """RARE. ``state_dict()`` of a model was called by the program."""

    module: Ref
    state: Ref
    """Stands for the dictionary."""
    parameter: Ref | None = None
    """One of the module's parameters in it."""


@dataclass(slots=True, kw_only=True, eq=False)
class StateDictUsed(Event):
    """RARE. A state dictionary captured before was loaded into a module or saved to a file."""

    how: str
    """"loaded", "saved"."""
    state: Ref
    captured_at: CodePosition | None
    captured_update: int
    aliased: bool
    """Its tensors are the module's own, now, so that every update since has changed them."""
    target: Ref | None
    module: Ref | None = None
    """The one it was captured from; ``target`` where it is loaded back."""
    weights_changed: bool = True
    """The weights have changed since it was captured."""


@dataclass(slots=True, kw_only=True, eq=False)
class CheckpointRead(Event):
    """RARE. ``torch.load`` returned."""

    path: str
    file: Ref
    weights_only: bool | None
    holds_model: bool
    holds_optimizer: bool


@dataclass(slots=True, kw_only=True, eq=False)
class CheckpointWritten(Event):
    """RARE. ``torch.save`` was called."""

    path: str
    """"" = not a file with a name."""
    holds_model: bool
    holds_optimizer: bool


class StateDictMatch(NamedTuple):
    """How the names in a state fit those of a model."""

    state_count: int
    """In the state."""
    model_count: int
    """Of the model."""
    matched: int
    """In both: these were loaded."""
    unexpected: str
    """One of the state's that the model has not, and ``missing`` one of the model's that the state has not; "" = none,
    or some matched."""
    missing: str


@dataclass(slots=True, kw_only=True, eq=False)
class StateLoaded(Event):
    """RARE. ``load_state_dict`` of a model, optimizer, scheduler or scaler was called by the program."""

    target: Ref
    what: str
    """"model", "optimizer", "scheduler", "scaler"."""
    file: Ref | None
    """The read file it came from."""
    name_match: StateDictMatch | None = None
    """Of a model that was loaded with ``strict=False``."""


@dataclass(slots=True, kw_only=True, eq=False)
class ModelExported(Event):
    """RARE. A module was traced or exported by the program, and the result written to a file or given to ONNX.

    Its place is the line that traced it.
    """

    model: Ref
    how: str
    """"torch.jit.trace", "torch.export.export", "torch.onnx.export"."""
    dropout: bool
    """It held dropout with p > 0 in train mode when it was recorded."""
    batchnorm: bool
    """It held a batch normalisation with running statistics in train mode then."""


@dataclass(slots=True, kw_only=True, eq=False)
class NonFiniteValue(Event):
    """RARE. A loss, gradient or weight became NaN or infinite, told the first time and then once in a while."""

    what: str
    """"loss", "gradient", "weight"."""
    value: str
    """"nan", "inf", "-inf"."""
    module: str
    """The module it ran in: "tail (Tail)"; "" = not found, or in none."""
    operation: str
    """The first operation whose result was not finite though its inputs were: "log"."""
    operation_location: CodePosition | None
    input_summary: str
    """What went into it, in words: "min -3.1, max 0.0, 12 zeros"; "" = not known."""
    parameters: Refs
    output_finite: bool = False
    """The model gave finite values only: where there is an operation, its result did not reach the output."""
    gradient_only: bool = False
    """The result of the operation is finite, and its gradient is not."""


@dataclass(slots=True, kw_only=True, eq=False)
class ErrorRaised(Event):
    """RARE. An exception left the program, or a call that is watched."""

    error: BaseException = field(repr=False)
