"""What optimizers and schedules do."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from trueloop.core.findings import CodePosition, SourceLocation
from trueloop.tracing.events.event import NO_REFS, Event, Ref, Refs


@dataclass(slots=True, kw_only=True, eq=False)
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


@dataclass(slots=True, kw_only=True, eq=False)
class StepMissing(Event):
    """RARE. Several backwards reached what one optimizer holds alone; it has not stepped, nor did any of it change.

    Told after as many, at the line of the latest; and again where it is so when the watch ends.
    """

    LIVE_FIELDS: ClassVar[tuple[str, ...]] = ("read_modules",)
    optimizer: Ref
    backwards: int
    called_by_user: bool
    """The program itself called backward, not a library for it."""
    watch_ended: bool
    read_modules: Callable[[bool], Mapping[str, ast.Module]]
    """LIVE: gives the files that were running, or all that they import, too; none where something in them cannot be
    read, or is yet to be written. Cost: 10 ms for each that is long, once."""


@dataclass(slots=True, kw_only=True, eq=False)
class StepTaken(Event):
    """An optimizer stepped. ``update`` is that of the events before it; the step makes it one more."""

    optimizer: Ref
    learning_rates: tuple[float, ...]
    """Learning rate of each group, as used; None of them is a tensor on a device."""
    parameters: Refs
    """All it holds."""
    with_gradient: Refs
    """Of those, that had one."""
    reused_gradients: Refs
    """GRD001: a backward added to a gradient that an earlier step had already used; exact."""
    reused_at: CodePosition | None
    """The backward that did."""
    backwards: int
    """Backwards since its step before that reached one of its parameters; 0 = it steps on old gradients, or none."""
    cleared_between: bool
    """Backwards reached its parameters since its last step, yet no gradient is left: cleared before the step."""
    cleared_at: CodePosition | None
    grad_norm: float | None
    """Joint L2 norm of the gradients it used, as they were at the step."""
    grad_norm_after_backward: float | None
    """The same right after the latest backward, without GradScaler's factor; read in windows of several backwards."""
    zero_gradients: Refs
    """Parameters whose gradient is exactly zero everywhere; empty where it was not read."""
    nonfinite_gradients: Refs
    frozen_changed: Refs
    """Parameters with requires_grad off that this step changed."""
    frozen: Refs
    """Parameters with requires_grad off in its groups."""
    scaler: Ref | None
    """The GradScaler that called it."""
    closure: bool
    seconds: float
    norm_parameters: tuple[Ref, ...] = ()
    """Those whose norm was read, in order."""
    parameter_norms: tuple[float, ...] = ()
    """L2 norm of the gradient of each of them; empty where it would have had to be waited for."""
    gradients_replaced: bool = False
    """The gradients are others than the latest backward left: the program made them by hand."""
    underflowing_eps: float | None = None
    """An ``eps`` of torch's own optimizer that rounds to zero in float16, the type of the parameters it is for."""
    still_scaled: Refs = NO_REFS
    """Of those with a gradient: it is still as the backward of a scaled loss has left it, multiplied by a GradScaler's
    factor, and the program has not asked for that factor since."""
    already_used: Refs = NO_REFS
    """Of those with a gradient: nothing was added to it since a step used it, of this optimizer or of another."""
    already_used_at: CodePosition | None = None
    """That step, where it was another optimizer's or another line's."""
    loader: Ref | None = None
    """The loader of the latest backward's batch."""
    batch: int = 0
    """That batch, by its number."""


@dataclass(slots=True, kw_only=True, eq=False)
class SymmetricUnits(Event):
    """RARE. The units of all layers that an optimizer trains were compared: once each, on the CPU only."""

    optimizer: Ref
    symmetric: tuple[tuple[Ref, int], ...]
    """Weights that have changed and whose rows, of this number, are the same, and so are their gradients, and the
    weights and gradients of a layer that takes as many inputs."""


@dataclass(slots=True, kw_only=True, eq=False)
class StepSkipped(Event):
    """A GradScaler found infinities and left the step out."""

    optimizer: Ref
    scaler: Ref


@dataclass(slots=True, kw_only=True, eq=False)
class SchedulerStepped(Event):
    """``scheduler.step()`` by the program; not told for the schedulers inside a SequentialLR."""

    scheduler: Ref
    kind: str
    """Class name: "CosineAnnealingLR"."""
    optimizer: Ref
    rates_before: tuple[float, ...]
    rates_after: tuple[float, ...]
    last_epoch: int
    """``last_epoch`` after it: how often it has been advanced."""
    planned_steps: int | None
    """Advances it was made for (T_max, total_steps, ...); None = no end."""
    optimizer_steps: int
    """Steps of that optimizer in this run so far."""
    backwards: int
    """Backwards in this run so far."""
    steps_per_epoch: int | None = None
    """Of its advances, how many an epoch has, as a OneCycleLR was told; None = it was not."""


@dataclass(slots=True, kw_only=True, eq=False)
class SchedulerNeverStepped(Event):
    """RARE. The watch ends, a schedule was never advanced, and no line of the program could do so."""

    scheduler: Ref
    kind: str
    optimizer: Ref
    optimizer_steps: int
    """Of that optimizer since it was made."""
    created_backward_count: int
    """Backwards before it was made."""


@dataclass(slots=True, kw_only=True, eq=False)
class IneffectiveOptimizerAttribute(Event):
    """RARE. An optimizer of torch's has an attribute that is named like a setting, and steps on with another value.

    Nothing in the program's own files reads the attribute, or sets that item of a group.
    """

    optimizer: Ref
    attribute: str
    attribute_value: str
    """Of the attribute, in words, and ``group_value`` that of the first group."""
    group_value: str
    assigned_at: SourceLocation
    """The line that sets it."""
