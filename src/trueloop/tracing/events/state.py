"""Events of graphs in memory, state dictionaries, checkpoints, and errors."""

from dataclasses import dataclass, field
from typing import NamedTuple

from trueloop.core.findings import CodePosition, SourceLocation
from trueloop.tracing.events.event import Event, Ref, Refs


@dataclass(slots=True, kw_only=True, eq=False)
class GraphsAlive(Event):
    """RARE. Graphs of past updates are still in memory after garbage collection; emitted when their number grew."""

    count: int
    oldest_update: int
    """The update at which the oldest graph was made."""
    holders: tuple[str, ...]
    """Variables that hold the graphs, as far as found: "losses[*] (local of train, train.py)"."""
    stored_at: SourceLocation | None = None
    """The line that stores them there, if found in the source."""
    parameter: str = ""
    """The parameter that is computed from its past values; "" = the graphs are those of outputs."""


@dataclass(slots=True, kw_only=True, eq=False)
class GraphsRetained(Event):
    """RARE. A line retains the graph of every backward, and none of the freed ones was run backward again."""

    count: int
    """Number of graphs that were freed unused."""


@dataclass(slots=True, kw_only=True, eq=False)
class StateDictCreated(Event):
    """RARE. ``state_dict()`` of a model was called by the program."""

    module: Ref
    state: Ref
    """Reference of the dictionary."""
    parameter: Ref | None = None
    """One of the module's parameters in the dictionary."""


@dataclass(slots=True, kw_only=True, eq=False)
class StateDictUsed(Event):
    """RARE. A state dictionary created before was loaded into a module or saved to a file."""

    how: str
    """"loaded", "saved"."""
    state: Ref
    captured_at: CodePosition | None
    captured_update: int
    aliased: bool
    """Its tensors share memory with the module's, so every update since has changed them."""
    target: Ref | None
    module: Ref | None = None
    """The module it was created from; equal to ``target`` if it is loaded back."""
    weights_changed: bool = True
    """The weights have changed since it was created."""


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
    """How the keys of a state dictionary match those of a model."""

    state_count: int
    """Number of keys in the state dictionary."""
    model_count: int
    """Number of keys of the model."""
    matched: int
    """Number of keys in both, which were loaded."""
    unexpected: str
    """A key that only the state dictionary has; "" = none, or some keys matched."""
    missing: str
    """A key that only the model has; "" = none, or some keys matched."""


@dataclass(slots=True, kw_only=True, eq=False)
class StateLoaded(Event):
    """RARE. ``load_state_dict`` of a model, optimizer, scheduler or scaler was called by the program."""

    target: Ref
    what: str
    """"model", "optimizer", "scheduler", "scaler"."""
    file: Ref | None
    """The file it was read from."""
    name_match: StateDictMatch | None = None
    """Key match of a model loaded with ``strict=False``; None if all keys match."""


@dataclass(slots=True, kw_only=True, eq=False)
class ModelExported(Event):
    """RARE. A module was traced or exported by the program, and the result saved to a file or passed to ONNX.

    Its location is the line that traced it.
    """

    model: Ref
    how: str
    """"torch.jit.trace", "torch.export.export", "torch.onnx.export"."""
    dropout: bool
    """It had dropout with p > 0 in train mode when it was recorded."""
    batchnorm: bool
    """It had a batch normalisation with running statistics in train mode when it was recorded."""


@dataclass(slots=True, kw_only=True, eq=False)
class NonFiniteValue(Event):
    """RARE. A loss, gradient or weight became NaN or infinite; emitted the first time and then now and then."""

    what: str
    """"loss", "gradient", "weight"."""
    value: str
    """"nan", "inf", "-inf"."""
    module: str
    """The module of the operation: "tail (Tail)"; "" = not found, or outside of modules."""
    operation: str
    """The first operation with finite inputs and a non-finite result: "log"."""
    operation_location: CodePosition | None
    input_summary: str
    """Its inputs, in words: "min -3.1, max 0.0, 12 zeros"; "" = unknown."""
    parameters: Refs
    output_finite: bool = False
    """The model's output was finite: the operation's result, if any, did not reach it."""
    gradient_only: bool = False
    """The operation's result is finite, and its gradient is not."""


@dataclass(slots=True, kw_only=True, eq=False)
class ErrorRaised(Event):
    """RARE. An exception left the program, or a traced call."""

    error: BaseException = field(repr=False)
