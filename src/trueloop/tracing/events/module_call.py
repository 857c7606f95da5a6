"""Events of model calls, their layers and modes."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from trueloop.tracing.events.event import Event, Ref, Refs


@dataclass(slots=True, kw_only=True, eq=False)
class ModelCalled(Event):
    """The forward of an outermost module with parameters returned."""

    LIVE_FIELDS: ClassVar[tuple[str, ...]] = ("live_module", "output")
    model: Ref
    training: bool
    dropout_active: bool
    """It has a dropout layer with p > 0 in train mode, or applied functional dropout because of train mode."""
    batchnorm_active: bool
    """It has a batch normalisation with running statistics in train mode."""
    all_eval: bool
    """All of its modules are in eval mode."""
    grad_mode: bool
    inference_mode: bool
    has_graph: bool
    """Its output depends on a parameter that requires a gradient."""
    autocast: str | None
    """Autocast type: "float16", "bfloat16"; None = off."""
    recomputed: bool
    """The call is a recomputation of activation checkpointing, within a backward."""
    loader: Ref | None
    """The loader of the latest batch; None = no batch since the previous forward of this model."""
    parameters: Refs
    """All of its parameters."""
    seconds: float
    live_module: Any
    """LIVE: the module."""
    output: Any
    """LIVE: the output."""
    autocast_parameter: tuple[Ref, int] | None = None
    """A parameter near the end of its graph that autocast has cast, and the sequence number of the cast; None = no
    autocast, or none found."""
    previous_graph_used: bool = False
    """The graph of this model's previous call, in eval mode, was run backward, possibly by ``torch.autograd.grad``."""


@dataclass(slots=True, kw_only=True, eq=False)
class ForwardBypassed(Event):
    """``model.forward(x)`` was called by the program with gradients enabled, though the model has hooks.

    Emitted once per line between two backwards. Calls by the model's own methods and by libraries are left out.
    """

    model: Ref
    parameters: Refs
    hooks: tuple[str, ...]
    """Kinds of hooks that did not run: "forward pre-hook"."""
    also_called_normally: bool
    """The model was also called normally before, directly or within another model."""


@dataclass(slots=True, kw_only=True, eq=False)
class DropoutWithoutTrainingFlag(Event):
    """Functional dropout was applied within the forward of a module without a ``training`` argument.

    Emitted each time, before the `ModelCalled` of the model; not for conditional calls.
    """

    module: Ref
    training: bool
    """The module is in train mode."""
    function: str
    """"dropout", "dropout1d", "dropout2d", "dropout3d"."""
    probability: float
    values: int
    """Number of values in its input."""
    input_repeated: bool
    """The same tensor went through the same line just before, as in Monte Carlo sampling."""


@dataclass(slots=True, kw_only=True, eq=False)
class UnregisteredModuleCalled(Event):
    """A module in train mode that is not registered in the model ran within its forward, and received gradients.

    Emitted once, for the outermost of nested modules.
    """

    LIVE_FIELDS: ClassVar[tuple[str, ...]] = ("live_module",)
    module: Ref
    model: Ref
    parameters: Refs
    trainable: bool
    live_module: Any
    """LIVE: the module."""


@dataclass(slots=True, kw_only=True, eq=False)
class BatchNormSingleSample(Event):
    """A batch normalisation in train mode got a batch of one sample after a larger one; emitted once per module."""

    module: Ref
    model: Ref
    values: int
    """Number of values per channel in the statistics."""
    previous_batch_size: int = 0
    """Number of samples in the larger batch."""


@dataclass(slots=True, kw_only=True, eq=False)
class RecurrentLayerCalled(Event):
    """A recurrent layer with ``batch_first=False`` ran on a loader's batch; emitted once per shape."""

    module: Ref
    time_steps: int
    """Size of the first dimension."""
    sequences: int | None
    """Size of the second dimension; None = the layer got a single sequence."""
    loader: Ref
    """The loader of the latest batch."""
    input_from_loader: bool
    """A tensor of that batch had these first dimensions, and so had the model's and the layer's input."""


@dataclass(slots=True, kw_only=True, eq=False)
class BatchNormTrained(Event):
    """RARE. A model with batch normalisations that track statistics was called in training for the first time."""

    model: Ref


@dataclass(slots=True, kw_only=True, eq=False)
class HighBatchNormMomentum(Event):
    """A model with batch normalisations of momentum 0.9 to 1 was called in training for the first time."""

    module: Ref
    """The first such layer."""
    model: Ref
    momentum: float
    layers: int


@dataclass(slots=True, kw_only=True, eq=False)
class DominatingEpsilon(Event):
    """A model with batch normalisations of epsilon 0.1 or more was called in training for the first time."""

    module: Ref
    """The first such layer."""
    model: Ref
    epsilon: float
    layers: int


class FreezeAttribute(NamedTuple):
    """An attribute that was set to freeze or unfreeze parts of a model, and that no code reads."""

    attribute: str
    """Name of the attribute; "requires_grad" only on modules."""
    value: bool
    names: tuple[str, ...]
    """Names of the modules or parameters that have it, "" for the model itself."""
    on_modules: bool
    """It is set on modules, not on parameters."""
    parameters: Refs
    """The parameters it was meant for; all require gradients although it is False, or none although it is True."""


@dataclass(slots=True, kw_only=True, eq=False)
class IneffectiveFreeze(Event):
    """RARE. The ineffective attributes of a model, at its first training call with a new optimizer and at changes."""

    model: Ref
    attributes: tuple[FreezeAttribute, ...]
    """The attributes; empty when earlier ones are gone."""


@dataclass(slots=True, kw_only=True, eq=False)
class ModeSet(Event):
    """RARE. ``train()`` or ``eval()`` was called by the program; not emitted for its children."""

    module: Ref
    training: bool
    changed: bool
    """Some submodule was in the other mode."""
    parameters: Refs
