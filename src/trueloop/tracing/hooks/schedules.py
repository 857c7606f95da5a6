"""Learning-rate schedules: each ``scheduler.step()`` by the program, once.

Schedulers that others drive (inside a SequentialLR or ChainedScheduler, or a warm-up of the program's own) are seen
only through the outermost one; the step every scheduler takes in its constructor is left out.
"""

from __future__ import annotations

import functools
import inspect
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Final

import torch
from torch import Tensor
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    ConstantLR,
    CosineAnnealingLR,
    LinearLR,
    LRScheduler,
    MultiStepLR,
    OneCycleLR,
    PolynomialLR,
    ReduceLROnPlateau,
    SequentialLR,
)

from trueloop.core.findings import CodePosition
from trueloop.tracing.events import Event, SchedulerNeverStepped, SchedulerStepped
from trueloop.tracing.patch import Patches
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.schedules_not_stepped import UnsteppedSchedules
from trueloop.tracing.stream import EventStream
from trueloop.tracing.user_location import user_location

RARELY: Final = 8  # steps of its optimizer between two advances: an epoch's schedule costs next to nothing to tell
PAST: Final = 4  # advances past its horizon that are told also where the run is watched lightly
ONE_SHOT: Final = (CosineAnnealingLR, OneCycleLR, PolynomialLR)  # of no use beyond their end; others may stay there

MADE_BY: Final = (LRScheduler, ReduceLROnPlateau, SequentialLR, ChainedScheduler)
"""Have constructors of their own; those of all others call the first one's."""

_is_compiling: Callable[[], bool] = torch.compiler.is_compiling


class _Known:
    """What is known of one scheduler."""

    __slots__ = ("horizon", "per_epoch", "steps")

    def __init__(self, horizon: int | None, per_epoch: int | None = None) -> None:
        self.horizon, self.per_epoch = horizon, per_epoch
        self.steps = 0
        """Of its optimizer, at its advance before."""


class Schedules:
    """Tells `ScheduleAdvanced`: in full, and else where an advance is rare or goes past the schedule's end.

    And at the end `ScheduleIdle`. Cost: 1 us where it is not told.
    """

    emits: ClassVar[tuple[type[Event], ...]] = (SchedulerStepped, SchedulerNeverStepped)

    def __init__(self, stream: EventStream, program: ProgramState) -> None:
        self._stream, self._program = stream, program
        self._known: weakref.WeakKeyDictionary[LRScheduler, _Known] = weakref.WeakKeyDictionary()
        self._inside = False
        self._unadvanced = UnsteppedSchedules(stream, program)
        self._made = stream.isolated("learning-rate schedules", self._unadvanced.on_created)
        self._moved = stream.isolated("learning-rate schedules", self._unadvanced.on_stepped)
        self._before = stream.isolated("learning-rate schedules", self._look)
        self._after = stream.isolated("learning-rate schedules", self._tell)

    def install_always(self, patches: Patches) -> None:
        """Replace ``step`` wherever a scheduler's class defines it, and see them being made."""
        self._unadvanced.reset()
        for kind in MADE_BY:
            patches.replace(kind, "__init__", self._constructor)
        patches.replace(OneCycleLR, "__init__", self._one_cycle)
        for kind in _kinds(LRScheduler):
            if "step" in vars(kind):
                patches.replace(kind, "step", self._replacement)

    def install_full_tracing(self, patches: Patches) -> None:
        """Nothing more."""

    def _constructor(self, original: Callable[..., None]) -> Callable[..., None]:
        def __init__(scheduler: Any, *args: Any, **options: Any) -> None:  # noqa: N807
            original(scheduler, *args, **options)
            if self._stream.active:
                self._made(scheduler)

        return __init__

    def _one_cycle(self, original: Callable[..., None]) -> Callable[..., None]:
        takes = inspect.signature(original)

        def look(scheduler: Any, given: Any) -> None:
            arguments = takes.bind(scheduler, *given[0], **given[1]).arguments
            told = None if arguments.get("total_steps") is not None else arguments.get("steps_per_epoch")
            self._known[scheduler] = _Known(planned_steps(scheduler), told if isinstance(told, int) else None)

        look = self._stream.isolated("learning-rate schedules", look)

        def __init__(scheduler: Any, *args: Any, **options: Any) -> None:  # noqa: N807
            original(scheduler, *args, **options)
            if self._stream.active:
                look(scheduler, (args, options))

        return __init__

    def _replacement(self, original: Callable[..., Any]) -> Callable[..., Any]:
        stream, unadvanced = self._stream, self._unadvanced

        def step(scheduler: LRScheduler, *args: Any, **kwargs: Any) -> Any:
            if unadvanced.pending and not _in_constructor(scheduler):
                self._moved(scheduler)
            if (
                not stream.active
                or _is_compiling()
                or self._program.is_other_thread()
                or self._inside
                or _in_constructor(scheduler)
            ):
                return original(scheduler, *args, **kwargs)
            rates = self._before(scheduler)
            self._inside = True
            try:
                result = original(scheduler, *args, **kwargs)
            finally:
                self._inside = False
            if rates is not None:
                self._after(scheduler, rates, user_location())
            return result

        return step

    def _look(self, scheduler: LRScheduler) -> tuple[float, ...] | None:
        """Return the learning rates before it advances; None where nobody wants to know."""
        optimizer = getattr(scheduler, "optimizer", None)
        if optimizer is None:
            return None
        known = self._known.get(scheduler)
        if known is None:
            known = self._known[scheduler] = _Known(planned_steps(scheduler))
        steps = self._steps(optimizer)
        since, known.steps = steps - known.steps, steps
        beyond = 0 if known.horizon is None else _count(scheduler) + 1 - known.horizon
        # After the first ones at powers of two: some windows later too, however long a window is
        past = beyond > 0 and (beyond <= PAST or beyond & (beyond - 1) == 0)
        return learning_rates(optimizer) if self._stream.full_tracing or since >= RARELY or past else None

    def _steps(self, optimizer: Any) -> int:
        known = self._program.optimizers.get(optimizer)
        return 0 if known is None else known.steps

    def _tell(self, scheduler: LRScheduler, before: tuple[float, ...], place: CodePosition | None) -> None:
        optimizer, stream = scheduler.optimizer, self._stream
        stream.emit(
            SchedulerStepped(
                location=place,
                scheduler=stream.registry.ref(scheduler),
                kind=type(scheduler).__name__,
                optimizer=stream.registry.ref(optimizer),
                rates_before=before,
                rates_after=learning_rates(optimizer),
                last_epoch=_count(scheduler),
                planned_steps=self._known[scheduler].horizon,
                steps_per_epoch=self._known[scheduler].per_epoch,
                optimizer_steps=self._steps(optimizer),
                backwards=stream.backward_count,
            )
        )


def _count(scheduler: Any) -> int:
    """How often it has been advanced; a ChainedScheduler leaves counting to its parts."""
    parts = getattr(scheduler, "_schedulers", None)
    counter = parts[0] if parts and not hasattr(scheduler, "last_epoch") else scheduler
    return int(getattr(counter, "last_epoch", 0))


def learning_rates(optimizer: Any) -> tuple[float, ...]:
    """Return the learning rate of each group; nothing where one is on a device that would have to be waited for."""
    values: list[float] = []
    for group in optimizer.param_groups:
        rate = group.get("lr")
        if type(rate) is not float:  # which it is nearly always
            if isinstance(rate, Tensor) and rate.device.type == "cpu":
                rate = rate.item()
            if not isinstance(rate, int | float):
                return ()
        values.append(float(rate))
    return tuple(values)


@functools.singledispatch
def planned_steps(scheduler: object) -> int | None:
    """Return how many advances a schedule was made for; None where it has no end, or none that is known."""
    return None


@planned_steps.register
def _(scheduler: CosineAnnealingLR) -> int | None:
    return scheduler.T_max


@planned_steps.register
def _(scheduler: OneCycleLR) -> int | None:
    return scheduler.total_steps


@planned_steps.register
def _(scheduler: PolynomialLR) -> int | None:
    return scheduler.total_iters


@planned_steps.register
def _(scheduler: LinearLR) -> int | None:
    return scheduler.total_iters


@planned_steps.register
def _(scheduler: ConstantLR) -> int | None:
    return scheduler.total_iters


@planned_steps.register
def _(scheduler: MultiStepLR) -> int | None:
    return max(scheduler.milestones, default=None)


@planned_steps.register
def _(scheduler: SequentialLR) -> int | None:
    parts: Sequence[Any] = getattr(scheduler, "_schedulers", ())
    starts: Sequence[int] = getattr(scheduler, "_milestones", ())
    last = planned_steps(parts[-1]) if parts and isinstance(parts[-1], ONE_SHOT) else None
    return None if last is None or not starts else starts[-1] + last


@planned_steps.register
def _(scheduler: ChainedScheduler) -> int | None:
    """All of them advance together, so the first to climb again spoils the rest."""
    ends = [planned_steps(part) for part in getattr(scheduler, "_schedulers", ()) if isinstance(part, ONE_SHOT)]
    return min((end for end in ends if end is not None), default=None)


def _kinds(kind: type[LRScheduler]) -> Iterator[type[LRScheduler]]:
    yield kind
    for below in kind.__subclasses__():
        yield from _kinds(below)


def _in_constructor(scheduler: LRScheduler) -> bool:
    """Every scheduler advances once while it is made, to set the first rate."""
    caller = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001
    return caller.f_code.co_name == "_initial_step" or getattr(scheduler, "_is_initial", False)
