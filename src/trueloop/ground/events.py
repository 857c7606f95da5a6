"""What happens in a training run, as detectors see it. See also `Detector`.

Two kinds. RARE events are always told. The others only while a run is watched in full: the first windows of the run
and after every change of structure (new optimizer, loader, mode), then a burst of a few updates now and then. A `Gap`
stands for what was not told in between. Within a burst nothing is missing.

"update" counts steps of any optimizer, "micro" counts outermost calls of backward. Fields marked LIVE are the
program's own objects, to be looked at during ``observe`` and not to be kept. A number that would have to be waited for
(on an accelerator) is None.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from trueloop.ground.findings import Place


class Ref:
    """Stands for one object of the program as long as the run lasts; equal only to itself.

    Holding it does not keep the object alive.
    """

    __slots__ = ("__weakref__", "kind", "name")

    def __init__(self, kind: str, name: str) -> None:
        self.kind = kind
        """The class: "AdamW", "Parameter", "Net"."""
        self.name = name
        """For people; becomes better as more is known: "0.weight", then "encoder.0.weight"."""

    def __repr__(self) -> str:
        return f"<{self.kind} {self.name}>"


Refs = frozenset[Ref]
NONE: Refs = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What every event tells."""

    update: int
    """Updates done before it."""
    micro: int
    """Backwards begun before it."""
    time_s: float
    place: Place | None = None
    """The user's line that did it; None where no line of the user's is on the stack."""
    thread: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap(Event):
    """RARE. The run was not watched in full since the event before; ``update`` and ``micro`` have moved on."""

    updates: int


# Data ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderStarted(Event):
    """RARE. A DataLoader was asked for an iterator."""

    loader: Ref
    epoch: int
    """Times it was started before."""
    sampler: str
    """Class name of what orders the samples: "RandomSampler", "SequentialSampler", "DistributedSampler", ..."""
    shuffles: bool | None
    """None where the sampler's class is not torch's own."""
    batch_size: int | None
    workers: int
    drop_last: bool
    live: Any
    """LIVE: the DataLoader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchDrawn(Event):
    """A DataLoader gave a batch."""

    loader: Ref
    epoch: int
    index: int
    """In its epoch."""
    waited_s: float
    batch: Any
    """LIVE."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderExhausted(Event):
    """RARE. A DataLoader had no more batches. One that was left by ``break`` never says so."""

    loader: Ref
    epoch: int
    batches: int
    pending: int
    """Backwards since the latest step of any optimizer."""
    batches_with_backward: int
    """Backwards while this epoch of it was running."""


# Forward ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCalled(Event):
    """An outermost module with parameters returned from its forward."""

    model: Ref
    training: bool
    dropout_active: bool
    """It holds a dropout layer with p > 0 in train mode."""
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
    bypassed: bool
    """``model.forward(x)`` was called instead of ``model(x)``: hooks and wrappers were left out."""
    recomputed: bool
    """Within a backward, by activation checkpointing."""
    loader: Ref | None
    """The loader that gave the latest batch, since the latest forward of this model; None = none did."""
    parameters: Refs
    """All of its parameters."""
    seconds: float
    live: Any
    """LIVE: the module."""
    output: Any
    """LIVE."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StrangerCalled(Event):
    """Within a model's forward a module with parameters ran that the model does not hold, told once for each."""

    module: Ref
    model: Ref
    parameters: Refs
    trainable: bool
    live: Any
    """LIVE: the module."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchNormOfOne(Event):
    """A batch normalisation in train mode saw a batch of one sample, told once for each module."""

    module: Ref
    model: Ref
    values: int
    """Values per channel it took the statistics over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeSet(Event):
    """RARE. ``train()`` or ``eval()`` was called by the program; not told for the children it passes on to."""

    module: Ref
    training: bool
    changed: bool
    """Some module in it was in the other mode."""
    parameters: Refs


# Loss and backward -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSeen:
    """One loss of torch's own, as found in the graph from which a backward started."""

    kind: str
    """"cross_entropy", "nll", "bce", "bce_with_logits", "mse", "l1", "smooth_l1", "huber", "kl_div", "ctc"."""
    reduction: str
    """"mean", "sum", "none"."""
    shape: tuple[int, ...] | None
    """Of its input."""
    count: float | None
    """What its mean divides by: elements, or targets that are not ignored, or their weights; None = unknown."""
    weight: float | None
    """The gradient it received in this backward, as a number: 1/K where the loss was divided by K. None = not read."""
    input_made_by: tuple[str, ...]
    """The operations before it, nearest first, views left out: ("softmax", "addmm")."""
    broadcast: tuple[tuple[int, ...], tuple[int, ...]] | None
    """Shapes of input and target before they were expanded against each other, where they were."""
    ignore_index: int | None
    targets: Any
    """LIVE: the target tensor; None where the graph does not hold it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackwardStarted(Event):
    """An outermost ``backward()`` begins."""

    has_graph: bool
    leaf: bool
    """The root is a leaf itself: ``requires_grad_(True)`` made it differentiable, and nothing is behind it."""
    retain_graph: bool
    create_graph: bool
    scaled: bool
    """The root was multiplied by a GradScaler."""
    dtype: str
    losses: tuple[LossSeen, ...]
    """With ``weight`` None."""
    loader: Ref | None
    """The loader that gave the latest batch."""
    batch: int
    """A number that grows with every batch drawn from any loader; equal = the same batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackwardEnded(Event):
    """An outermost ``backward()`` returned."""

    value: float | None
    """Of the root, where it is one number and can be read without waiting; GradScaler's factor is taken out."""
    losses: tuple[LossSeen, ...]
    """With ``weight``."""
    received: Refs
    """Parameters, of all models and optimizers seen, whose gradient it made or added to."""
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientsCleared(Event):
    """``zero_grad()`` of an optimizer or module; gradients cleared by hand are seen at the next step only."""

    by: Ref
    parameters: Refs
    """That had a gradient, and have none, or zeros, now."""
    unconsumed: Refs
    """Of those, with something a backward added that no step has used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientsClipped(Event):
    """``clip_grad_norm_`` or ``clip_grad_value_``."""

    kind: str
    """"norm", "value"."""
    limit: float
    measured: float | None
    parameters: Refs
    """That had a gradient."""
    consumed: Refs
    """Of those, nothing was added since a step used it."""
    scaled: Refs
    """Of those, still multiplied by a GradScaler's factor."""
    probe: bool
    """The limit is infinite: only the norm was wanted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossScaled(Event):
    """``GradScaler.scale(loss)``, told in full only."""

    scaler: Ref
    enabled: bool
    scale: float | None
    autocast: str | None
    """The type of autocast the newest model call ran under."""
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientsUnscaled(Event):
    """``GradScaler.unscale_(optimizer)``, called by the program."""

    scaler: Ref
    optimizer: Ref


# Optimizer and schedule ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerCreated(Event):
    """RARE. An optimizer was built, or seen for the first time."""

    optimizer: Ref
    kind: str
    parameters: Refs
    trainable: Refs
    stateful: bool
    """It has moments to lose: momentum, Adam's averages."""
    predecessors: tuple[Ref, ...]
    """Living or dead optimizers that have stepped some of the same parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTaken(Event):
    """An optimizer stepped. ``update`` is that of the events before it; the step makes it one more."""

    optimizer: Ref
    rates: tuple[float, ...]
    """Learning rate of each group, as used; None of them is a tensor on a device."""
    parameters: Refs
    """All it holds."""
    with_gradient: Refs
    """Of those, that had one."""
    reused: Refs
    """GRD001: a backward added to a gradient that an earlier step had already used; exact."""
    reused_from: Place | None
    """The backward that did."""
    backwards: int
    """Backwards since its step before that reached one of its parameters; 0 = it steps on old gradients, or none."""
    cleared_between: bool
    """Backwards reached its parameters since its last step, yet no gradient is left: cleared before the step."""
    cleared_at: Place | None
    norm: float | None
    """Joint L2 norm of the gradients it used, as they were at the step."""
    zero: Refs
    """Parameters whose gradient is exactly zero everywhere; empty where it was not read."""
    not_finite: Refs
    frozen_moved: Refs
    """Parameters with requires_grad off that this step changed."""
    frozen: Refs
    """Parameters with requires_grad off in its groups."""
    scaler: Ref | None
    """The GradScaler that called it."""
    closure: bool
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSkipped(Event):
    """A GradScaler found infinities and left the step out."""

    optimizer: Ref
    scaler: Ref


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleAdvanced(Event):
    """``scheduler.step()`` by the program; not told for the schedulers inside a SequentialLR."""

    scheduler: Ref
    kind: str
    """Class name: "CosineAnnealingLR"."""
    optimizer: Ref
    before: tuple[float, ...]
    after: tuple[float, ...]
    count: int
    """``last_epoch`` after it: how often it has been advanced."""
    horizon: int | None
    """Advances it was made for (T_max, total_steps, ...); None = no end."""
    optimizer_steps: int
    """Steps of that optimizer in this run so far."""
    backwards: int
    """Backwards in this run so far that reached it."""


# Memory, states, trouble -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphsAlive(Event):
    """RARE. Graphs of past updates are in memory, after the garbage collector ran; told when their number grew."""

    count: int
    marked: int
    """How many graphs could be alive, if all were: those that were marked so far."""
    oldest: int
    """The update the oldest one was made at."""
    holders: tuple[str, ...]
    """Who holds them, as far as it was found: "losses (local of train, train.py)[*]"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateCaptured(Event):
    """RARE. ``state_dict()`` of a model was called by the program."""

    module: Ref
    state: Ref
    """Stands for the dictionary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateUsed(Event):
    """RARE. A state dictionary captured before was loaded into a module or saved to a file."""

    how: str
    """"loaded", "saved"."""
    state: Ref
    captured_at: Place | None
    captured_update: int
    aliased: bool
    """Its tensors are the module's own, now, so that every update since has changed them."""
    target: Ref | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRead(Event):
    """RARE. ``torch.load`` returned."""

    path: str
    file: Ref
    weights_only: bool | None
    holds_model: bool
    holds_optimizer: bool
    holds_scheduler: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StateLoaded(Event):
    """RARE. ``load_state_dict`` of a model, optimizer, scheduler or scaler was called by the program."""

    target: Ref
    what: str
    """"model", "optimizer", "scheduler", "scaler"."""
    file: Ref | None
    """The read file it came from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotFinite(Event):
    """RARE. A loss, gradient or weight became NaN or infinite, told the first time and then once in a while."""

    what: str
    """"loss", "gradient", "weight"."""
    value: str
    """"nan", "inf", "-inf"."""
    module: str
    """The first module whose output was not finite, by name; "" = not found."""
    operation: str
    """The first operation whose result was not finite though its inputs were: "log"."""
    operation_place: Place | None
    inputs: str
    """What went into it, in words: "min -3.1, max 0.0, 12 zeros"; "" = not known."""
    parameters: Refs
    since: int
    """The last update known to have been finite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorRaised(Event):
    """RARE. An exception left the program, or a call that is watched."""

    error: BaseException = field(repr=False)
