"""What models do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from trueloop.tracing.events.event import Event, Ref, Refs


@dataclass(slots=True, kw_only=True, eq=False)
class ModelCalled(Event):
    """An outermost module with parameters returned from its forward."""

    LIVE_FIELDS: ClassVar[tuple[str, ...]] = ("live_module", "output")
    model: Ref
    training: bool
    dropout_active: bool
    """It holds a dropout layer with p > 0 in train mode, or called functional dropout by a mode that is."""
    batchnorm_active: bool
    """It holds a batch normalisation with running statistics in train mode."""
    all_eval: bool
    """No module in it is in train mode."""
    grad_mode: bool
    inference_mode: bool
    has_graph: bool
    """Its output leads back to a parameter that wants a gradient."""
    autocast: str | None
    """The type of autocast it ran under: "float16", "bfloat16"; None = off."""
    recomputed: bool
    """Within a backward, by activation checkpointing."""
    loader: Ref | None
    """The loader that gave the latest batch, since the latest forward of this model; None = none did."""
    parameters: Refs
    """All of its parameters."""
    seconds: float
    live_module: Any
    """LIVE: the module."""
    output: Any
    """LIVE."""
    autocast_parameter: tuple[Ref, int] | None = None
    """A parameter near the end of its graph that autocast has cast to another type, and the number of the operation
    that did: those of later ones are higher. None = none was found, or there is no autocast."""
    previous_graph_used: bool = False
    """The graph of this model's call before, in eval mode, was run backward, if only by ``torch.autograd.grad``."""


@dataclass(slots=True, kw_only=True, eq=False)
class ForwardBypassed(Event):
    """``model.forward(x)`` was called by the program with gradients on, though the model has hooks of its own.

    Told once between two backwards for each line. Calls by the model's own methods and by libraries are left out.
    """

    model: Ref
    parameters: Refs
    hooks: tuple[str, ...]
    """The kinds of hooks that did not run: "forward pre-hook"."""
    also_called_normally: bool
    """It was also called as it should be, by itself or within another model, at some time before."""


@dataclass(slots=True, kw_only=True, eq=False)
class DropoutWithoutTrainingFlag(Event):
    """Within the forward of a module functional dropout was at work, and ``training`` was not given to it.

    Told each time, before the `ModelCalled` of the model it ran in; not of calls that stand under a condition.
    """

    module: Ref
    training: bool
    """The module is in train mode."""
    function: str
    """"dropout", "dropout1d", "dropout2d", "dropout3d"."""
    probability: float
    values: int
    """In its input."""
    input_repeated: bool
    """The same tensor went through the same line just before: several samples are wanted."""


@dataclass(slots=True, kw_only=True, eq=False)
class UnregisteredModuleCalled(Event):
    """Within a model's forward a module in train mode ran that the model does not hold, and has got gradients.

    It is told once; of modules within each other the outermost is.
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
    """A batch normalisation in train mode saw a batch of one sample after a larger one, told once for each module."""

    module: Ref
    model: Ref
    values: int
    """Values per channel it took the statistics over."""
    previous_batch_size: int = 0
    """Samples in the larger batch."""


@dataclass(slots=True, kw_only=True, eq=False)
class RecurrentLayerCalled(Event):
    """A recurrent layer that takes time as the first dimension ran on a batch of a loader, told once for each shape."""

    module: Ref
    time_steps: int
    """Size of that dimension."""
    sequences: int | None
    """Of the next one; None = the layer was given a single sequence."""
    loader: Ref
    """That gave the latest batch."""
    input_from_loader: bool
    """A tensor of that batch came to the model, and from there to the layer, with these as its first dimensions."""


@dataclass(slots=True, kw_only=True, eq=False)
class BatchNormTrained(Event):
    """RARE. A model whose batch normalisations keep statistics was called in training for the first time."""

    model: Ref


@dataclass(slots=True, kw_only=True, eq=False)
class HighBatchNormMomentum(Event):
    """A model whose batch normalisations have a momentum of 0.9 to 1 was called in training for the first time."""

    module: Ref
    """The first of them."""
    model: Ref
    momentum: float
    layers: int


@dataclass(slots=True, kw_only=True, eq=False)
class DominatingEpsilon(Event):
    """A model whose batch normalisations have an epsilon of 0.1 or more was called in training for the first time."""

    module: Ref
    """The first of them."""
    model: Ref
    epsilon: float
    layers: int


class FreezeAttribute(NamedTuple):
    """An attribute that was to freeze or thaw parts of a model, and that nothing reads."""

    attribute: str
    """Where it is "requires_grad" it stands on modules."""
    value: bool
    names: tuple[str, ...]
    """Of the modules or parameters in the model that have it, "" for the model itself."""
    on_modules: bool
    """It stands on modules, not on parameters."""
    parameters: Refs
    """That are meant; all of them want gradients where it says False, and none of them where it says True."""


@dataclass(slots=True, kw_only=True, eq=False)
class IneffectiveFreeze(Event):
    """RARE. Such attributes of a model, at its first call in training with a new optimizer; again when they change."""

    model: Ref
    attributes: tuple[FreezeAttribute, ...]
    """Empty where there were some before."""


@dataclass(slots=True, kw_only=True, eq=False)
class ModeSet(Event):
    """RARE. ``train()`` or ``eval()`` was called by the program; not told for the children it passes on to."""

    module: Ref
    training: bool
    changed: bool
    """Some module in it was in the other mode."""
    parameters: Refs
