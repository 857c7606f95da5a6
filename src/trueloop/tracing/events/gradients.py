"""Events of losses, backwards and gradients."""

from dataclasses import dataclass
from typing import Any

from trueloop.core.findings import CodePosition
from trueloop.tracing.events.event import Event, Ref, Refs


@dataclass(slots=True, kw_only=True, eq=False)
class LossRecord:
    """One PyTorch loss, as found in the graph of a backward."""

    kind: str
    """"cross_entropy", "nll", "bce", "bce_with_logits", "mse", "l1", "smooth_l1", "huber", "kl_div", "ctc"."""
    reduction: str
    """"mean", "sum", "none"."""
    shape: tuple[int, ...] | None
    """Shape of its input."""
    count: float | None
    """Divisor of its mean: number of elements, or of targets not ignored, or sum of their weights; None = unknown."""
    gradient_weight: float | None
    """The scalar gradient it received in this backward: 1/K if the loss was divided by K. None = not read."""
    input_operations: tuple[str, ...]
    """Operations before its input, nearest first, without views: ("softmax", "addmm")."""
    broadcast: tuple[tuple[int, ...], tuple[int, ...]] | None
    """Shapes of input and target before broadcasting; None = they were not broadcast."""
    ignore_index: int | None
    targets: Any
    """LIVE: the target tensor, only when the backward starts; None if the graph does not hold it."""
    unreadable_reason: str = ""
    """The reason why targets, and the number of targets not ignored, cannot be read from the graph; "" = they can."""
    class_weights: bool = False
    """Its targets are weighted by their class."""
    location: CodePosition | None = None
    """The line that computed it; None = unknown."""
    normalised_over: tuple[int, int] | None = None
    """Dimension and size of a log-softmax that is not over the classes; None = over the classes, or unknown."""


@dataclass(slots=True, kw_only=True, eq=False)
class LossArgumentsSwapped(Event):
    """RARE. The target of a binary cross-entropy has a graph, and its input has none."""

    function: str
    """"binary_cross_entropy", "binary_cross_entropy_with_logits"."""
    input_is_binary: bool | None
    """Its input consists of zeros and ones; None = not read, on a device."""
    target_outside_unit_interval: bool | None
    """Its target is outside of [0, 1]."""


@dataclass(slots=True, kw_only=True, eq=False)
class BackwardStarted(Event):
    """An outermost ``backward()`` starts."""

    leaf: bool
    """The root itself is a leaf: ``requires_grad_(True)`` made it differentiable, and it has no graph."""
    retain_graph: bool
    create_graph: bool
    scaled: bool
    """The root was multiplied by a GradScaler."""
    losses: tuple[LossRecord, ...]
    """The losses, with ``gradient_weight`` None."""
    loader: Ref | None
    """The loader of the latest batch."""
    batch: int
    """Number of batches that all loaders have returned; equal = the same batch."""
    anomaly_mode: bool = False
    """``torch.autograd.detect_anomaly`` is on."""
    anomaly_at: CodePosition | None = None
    """Where anomaly detection was switched on, if that was traced."""


@dataclass(slots=True, kw_only=True, eq=False)
class BackwardLosses(Event):
    """Follows `BackwardStarted` if its losses were newly read, which equal windows do only a few times."""

    losses: tuple[LossRecord, ...]
    """The losses of that backward."""


@dataclass(slots=True, kw_only=True, eq=False)
class BackwardEnded(Event):
    """An outermost ``backward()`` returned."""

    root_value: float | None
    """Value of a scalar root without GradScaler's factor; None if it needs a device synchronisation."""
    losses: tuple[LossRecord, ...]
    """The losses, with ``gradient_weight``."""
    reached_parameters: Refs
    """Parameters of all known models and optimizers whose gradient it created or added to."""
    seconds: float
    loader: Ref | None
    """The loader of the latest batch when it started."""
    batch: int
    """The batch number of its `BackwardStarted`."""
    graph_order: int | None = None
    """Sequence number of the root's operation: higher than those of all earlier operations in its thread."""


@dataclass(slots=True, kw_only=True, eq=False)
class IncompleteWindow(Event):
    """RARE. A loader ended within an accumulation window, and no step has used the gradients accumulated so far."""

    loader: Ref
    batches: int
    """Number of batches in the loader's epoch."""
    leftover_backwards: int
    """Number of backwards between the latest step and the loader's end."""
    window_backwards: int
    """Number of backwards in each of the previous windows."""
    cleared: bool
    """The gradients were cleared; otherwise they were added to the next window."""
    next_window_backwards: int
    """Number of backwards in the next window, including the leftover ones; 0 if they were cleared."""


@dataclass(slots=True, kw_only=True, eq=False)
class GradientsCleared(Event):
    """``zero_grad()`` of an optimizer or module discarded gradients that no step has used; other calls emit nothing.

    Gradients that are cleared by hand are detected at the next step only.
    """

    unused: Refs
    """Parameters with a gradient contribution that no step has used."""


@dataclass(slots=True, kw_only=True, eq=False)
class GradientsClipped(Event):
    """``clip_grad_norm_`` or ``clip_grad_value_`` was called."""

    kind: str
    """"norm", "value"."""
    limit: float
    measured: float | None
    parameters: Refs
    """Parameters that had a gradient."""
    already_used: Refs
    """Parameters whose gradient is unchanged since a step used it."""
    scaled: Refs
    """Parameters whose gradient is still multiplied by a GradScaler's factor."""
    only_measured: bool
    """The limit is infinite, to measure the norm only."""
    generator_exhausted: bool = False
    """The parameters were passed as a generator that was already exhausted."""


@dataclass(slots=True, kw_only=True, eq=False)
class LossScaled(Event):
    """``GradScaler.scale(loss)`` was called."""

    scaler: Ref
    enabled: bool
    scale: float | None
    autocast: str | None
    """The autocast type of the newest model call that made a graph."""
    dtype: str


@dataclass(slots=True, kw_only=True, eq=False)
class ScalerCreated(Event):
    """RARE. An enabled GradScaler was created."""

    scaler: Ref


@dataclass(slots=True, kw_only=True, eq=False)
class GradientsUnscaled(Event):
    """``GradScaler.unscale_(optimizer)`` was called by the program."""

    scaler: Ref
    optimizer: Ref
