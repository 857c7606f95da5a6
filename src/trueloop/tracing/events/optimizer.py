"""Events of optimizers and learning-rate schedulers."""

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from trueloop.core.findings import CodePosition, SourceLocation
from trueloop.tracing.events.event import NO_REFS, Event, Ref, Refs


@dataclass(slots=True, kw_only=True, eq=False)
class OptimizerCreated(Event):
    """RARE. An optimizer was created, or found for the first time."""

    optimizer: Ref
    kind: str
    parameters: Refs
    trainable: Refs
    stateful: bool
    """It has state such as momentum or Adam's averages."""
    predecessors: tuple[Ref, ...]
    """Optimizers, existing or not, that have stepped some of the same parameters."""


@dataclass(slots=True, kw_only=True, eq=False)
class StepMissing(Event):
    """RARE. Several backwards reached parameters of one optimizer only; it has not stepped, and they have not changed.

    Emitted at the line of the latest backward, and again if it still holds when the watch ends.
    """

    LIVE_FIELDS: ClassVar[tuple[str, ...]] = ("read_modules",)
    optimizer: Ref
    backwards: int
    called_by_user: bool
    """The user's code called backward, not a library."""
    watch_ended: bool
    read_modules: Callable[[bool], Mapping[str, ast.Module]]
    """LIVE: parses the running files, and if True also what they import; empty if some code cannot be read, or is still
    to be written. Cost: 10 ms for each long file, once."""


@dataclass(slots=True, kw_only=True, eq=False)
class StepTaken(Event):
    """An optimizer stepped. ``update`` is the count before the step."""

    optimizer: Ref
    learning_rates: tuple[float, ...]
    """Learning rate of each group in this step; empty if one is a tensor on a device."""
    parameters: Refs
    """All parameters of the optimizer."""
    with_gradient: Refs
    """Parameters that had a gradient."""
    reused_gradients: Refs
    """Parameters whose gradient a backward added to after a step had used it (GRD001); exact."""
    reused_at: CodePosition | None
    """The backward that added to it."""
    backwards: int
    """Number of backwards since its previous step that reached its parameters; 0 = it uses old gradients, or none."""
    cleared_between: bool
    """Backwards reached its parameters since its previous step, but no gradient is left: cleared before the step."""
    cleared_at: CodePosition | None
    grad_norm: float | None
    """Joint L2 norm of the gradients at the step."""
    grad_norm_after_backward: float | None
    """Joint norm after the latest backward, without GradScaler's factor; read in windows of several backwards."""
    zero_gradients: Refs
    """Parameters whose gradient is exactly zero; empty if it was not read."""
    nonfinite_gradients: Refs
    frozen_changed: Refs
    """Parameters with requires_grad off that this step changed."""
    frozen: Refs
    """Parameters with requires_grad off in its groups."""
    scaler: Ref | None
    """The GradScaler that called the step."""
    closure: bool
    seconds: float
    norm_parameters: tuple[Ref, ...] = ()
    """Parameters whose norm was read, in order."""
    parameter_norms: tuple[float, ...] = ()
    """L2 norm of each gradient in ``norm_parameters``; empty if it needs a device synchronisation."""
    gradients_replaced: bool = False
    """The gradients are other objects than after the latest backward: the program assigned them."""
    underflowing_eps: float | None = None
    """An ``eps`` of a PyTorch optimizer that rounds to zero in the parameters' float16; None = none."""
    still_scaled: Refs = NO_REFS
    """Parameters whose gradient is unchanged since the backward of a scaled loss, so still multiplied by a GradScaler's
    factor, which the program has not read since."""
    already_used: Refs = NO_REFS
    """Parameters whose gradient is unchanged since a step of any optimizer used it."""
    already_used_at: CodePosition | None = None
    """The step that used them."""
    loader: Ref | None = None
    """The loader of the latest backward's batch."""
    batch: int = 0
    """Number of that batch."""


@dataclass(slots=True, kw_only=True, eq=False)
class SymmetricUnits(Event):
    """RARE. The units of all layers that an optimizer trains were compared, once per optimizer, on the CPU only."""

    optimizer: Ref
    symmetric: tuple[tuple[Ref, int], ...]
    """Trained weights with their number of rows: all rows are equal, and so are their gradients, and the weights and
    gradients of a following layer with as many inputs."""


@dataclass(slots=True, kw_only=True, eq=False)
class StepSkipped(Event):
    """A GradScaler found infinities and skipped the step."""

    optimizer: Ref
    scaler: Ref


@dataclass(slots=True, kw_only=True, eq=False)
class SchedulerStepped(Event):
    """``scheduler.step()`` was called by the program; not emitted for the schedulers inside a SequentialLR."""

    scheduler: Ref
    kind: str
    """Class name: "CosineAnnealingLR"."""
    optimizer: Ref
    rates_before: tuple[float, ...]
    rates_after: tuple[float, ...]
    last_epoch: int
    """``last_epoch`` after the step: the number of steps so far."""
    planned_steps: int | None
    """Number of steps it was created for (T_max, total_steps, ...); None = no end."""
    optimizer_steps: int
    """Number of steps of its optimizer so far."""
    backwards: int
    """Number of backwards so far."""
    steps_per_epoch: int | None = None
    """``steps_per_epoch`` of a OneCycleLR; None = not given."""


@dataclass(slots=True, kw_only=True, eq=False)
class SchedulerNeverStepped(Event):
    """RARE. At the end of the watch a scheduler was never stepped, and no line of the program could step it."""

    scheduler: Ref
    kind: str
    optimizer: Ref
    optimizer_steps: int
    """Number of steps of its optimizer since the scheduler was created."""
    created_backward_count: int
    """Number of backwards before the scheduler was created."""


@dataclass(slots=True, kw_only=True, eq=False)
class IneffectiveOptimizerAttribute(Event):
    """RARE. A PyTorch optimizer got an attribute named like a setting, and steps with another value of it.

    No file of the program reads the attribute, or sets the setting in a parameter group.
    """

    optimizer: Ref
    attribute: str
    attribute_value: str
    """Value of the attribute, as text."""
    group_value: str
    """Value in the first parameter group, as text."""
    assigned_at: SourceLocation
    """The line that sets the attribute."""
