"""Losses, and what happens to gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trueloop.core.findings import CodePosition
from trueloop.tracing.events.event import Event, Ref, Refs


@dataclass(slots=True, kw_only=True, eq=False)
class LossRecord:
    """One loss of torch's own, as found in the graph from which a backward started."""

    kind: str
    """"cross_entropy", "nll", "bce", "bce_with_logits", "mse", "l1", "smooth_l1", "huber", "kl_div", "ctc"."""
    reduction: str
    """"mean", "sum", "none"."""
    shape: tuple[int, ...] | None
    """Of its input."""
    count: float | None
    """What its mean divides by: elements, or targets that are not ignored, or their weights; None = unknown."""
    gradient_weight: float | None
    """The gradient it received in this backward, as a number: 1/K where the loss was divided by K. None = not read."""
    input_operations: tuple[str, ...]
    """The operations before it, nearest first, views left out: ("softmax", "addmm")."""
    broadcast: tuple[tuple[int, ...], tuple[int, ...]] | None
    """Shapes of input and target before they were expanded against each other, where they were."""
    ignore_index: int | None
    targets: Any
    """LIVE, and there when the backward starts only: the target tensor; None where the graph does not hold it."""
    unreadable_reason: str = ""
    """Why targets, and a count that leaves some of them out, cannot be read from the graph; "" = they can."""
    class_weights: bool = False
    """Its targets are weighted by their class."""
    location: CodePosition | None = None
    """The line that computed it; None = not known."""
    normalised_over: tuple[int, int] | None = None
    """Of log-probabilities that add up to one over something other than the classes: over which dimension, and how
    many values it has; None = over the classes, or not known."""


@dataclass(slots=True, kw_only=True, eq=False)
class LossArgumentsSwapped(Event):
    """RARE. A binary cross-entropy whose input has no graph, while its target has one."""

    function: str
    """"binary_cross_entropy", "binary_cross_entropy_with_logits"."""
    input_is_binary: bool | None
    """Its input is made of zeros and ones; None = values are not read, which lie on a device."""
    target_outside_unit_interval: bool | None
    """Its target is no probability: it leaves 0 to 1."""


@dataclass(slots=True, kw_only=True, eq=False)
class BackwardStarted(Event):
    """An outermost ``backward()`` begins."""

    leaf: bool
    """The root is a leaf itself: ``requires_grad_(True)`` made it differentiable, and nothing is behind it."""
    retain_graph: bool
    create_graph: bool
    scaled: bool
    """The root was multiplied by a GradScaler."""
    losses: tuple[LossRecord, ...]
    """With ``gradient_weight`` None."""
    loader: Ref | None
    """The loader that gave the latest batch."""
    batch: int
    """A number that grows with every batch drawn from any loader; equal = the same batch."""
    anomaly_mode: bool = False
    """torch looks for what makes a gradient not finite: ``torch.autograd.detect_anomaly``."""
    anomaly_at: CodePosition | None = None
    """Where that was switched on, if it was seen."""


@dataclass(slots=True, kw_only=True, eq=False)
class BackwardLosses(Event):
    """Behind `BackwardStarted`, where its losses were read anew; those of updates made alike are a few times only."""

    losses: tuple[LossRecord, ...]
    """The same."""


@dataclass(slots=True, kw_only=True, eq=False)
class BackwardEnded(Event):
    """An outermost ``backward()`` returned."""

    root_value: float | None
    """Of the root, where it is one number and can be read without waiting; GradScaler's factor is taken out."""
    losses: tuple[LossRecord, ...]
    """With ``gradient_weight``."""
    reached_parameters: Refs
    """Parameters, of all models and optimizers seen, whose gradient it made or added to."""
    seconds: float
    loader: Ref | None
    """The loader that had given the latest batch when it began."""
    batch: int
    """That batch's number, as of its `BackwardStarted`."""
    graph_order: int | None = None
    """A number of the root's operation that is higher than those of all operations before it in its thread."""


@dataclass(slots=True, kw_only=True, eq=False)
class IncompleteWindow(Event):
    """RARE. A loader ended within a window of several batches, and no step has used what was accumulated by then."""

    loader: Ref
    batches: int
    """Of the loader's epoch."""
    leftover_backwards: int
    """Backwards since the step before its end."""
    window_backwards: int
    """Backwards in each of the windows before."""
    cleared: bool
    """The gradients were cleared; otherwise they went into the next window."""
    next_window_backwards: int
    """In that next window, together with those left over; 0 where they were cleared."""


@dataclass(slots=True, kw_only=True, eq=False)
class GradientsCleared(Event):
    """``zero_grad()`` of an optimizer or module dropped what no step has used; any other is not told.

    Gradients cleared by hand are seen at the next step only.
    """

    unused: Refs
    """Parameters whose gradient held something a backward added that no step has used."""


@dataclass(slots=True, kw_only=True, eq=False)
class GradientsClipped(Event):
    """``clip_grad_norm_`` or ``clip_grad_value_``."""

    kind: str
    """"norm", "value"."""
    limit: float
    measured: float | None
    parameters: Refs
    """That had a gradient."""
    already_used: Refs
    """Of those, nothing was added since a step used it."""
    scaled: Refs
    """Of those, still multiplied by a GradScaler's factor."""
    only_measured: bool
    """The limit is infinite: only the norm was wanted."""
    generator_exhausted: bool = False
    """What was given is a generator that had been gone through to its end before."""


@dataclass(slots=True, kw_only=True, eq=False)
class LossScaled(Event):
    """``GradScaler.scale(loss)``, told in full only."""

    scaler: Ref
    enabled: bool
    scale: float | None
    autocast: str | None
    """The type of autocast the newest call of a model ran under that made a graph."""
    dtype: str


@dataclass(slots=True, kw_only=True, eq=False)
class ScalerCreated(Event):
    """RARE. A GradScaler that is switched on was built."""

    scaler: Ref


@dataclass(slots=True, kw_only=True, eq=False)
class GradientsUnscaled(Event):
    """``GradScaler.unscale_(optimizer)``, called by the program."""

    scaler: Ref
    optimizer: Ref
