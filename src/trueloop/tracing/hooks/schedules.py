"""Traces ``scheduler.step()`` of learning-rate schedulers.

If a scheduler steps others (as SequentialLR, ChainedScheduler or a custom warm-up do), only the outermost step is
traced. The initial step in every scheduler's constructor is left out.
"""

import functools
import inspect
import sys
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Final, SupportsFloat

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    ConstantLR,
    CosineAnnealingLR,
    LambdaLR,
    LinearLR,
    LRScheduler,
    MultiStepLR,
    OneCycleLR,
    PolynomialLR,
    ReduceLROnPlateau,
    SequentialLR,
)

from trueloop.core.findings import CodePosition
from trueloop.tracing.attach import Hook
from trueloop.tracing.events import Event, SchedulerStepped
from trueloop.tracing.frame_variables import variables
from trueloop.tracing.patch import Patches
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.stream import EventStream
from trueloop.tracing.user_location import is_user_code, user_location

MIN_STEPS_BETWEEN: Final = 8  # optimizer steps; scheduler steps at least so far apart are always reported
MAX_STEPS_PAST_END: Final = 4  # first steps past a schedule's end, which sampled tracing reports too
MAX_FRAMES: Final = 4  # user functions in which the name of a metric is searched for
ONE_SHOT: Final = (CosineAnnealingLR, OneCycleLR, PolynomialLR)  # schedules that must not continue beyond their end

_is_compiling: Callable[[], bool] = torch.compiler.is_compiling


class _SchedulerState:
    """State of one scheduler."""

    __slots__ = ("calls", "earlier_calls", "numbers", "planned_steps", "steps", "steps_per_epoch", "update")

    def __init__(self, scheduler: LRScheduler, steps_per_epoch: int | None = None) -> None:
        self.planned_steps, self.steps_per_epoch = planned_steps(scheduler), steps_per_epoch
        self.numbers = numbers_of(scheduler)
        self.calls = 0
        """Number of calls of ``step()``."""
        self.earlier_calls: int | None = None
        """At its first step, the number of calls of the optimizer's previous scheduler; None at later steps."""
        self.steps = 0
        """Number of optimizer steps before the previous step of the scheduler."""
        self.update = 0
        """Number of updates, of any optimizer, before it."""


class Schedules(Hook):
    """Emits `SchedulerStepped` in full tracing; in sampled tracing only if steps are rare or past the schedule's end.

    Cost: 1 us for each step without an event.
    """

    emits: ClassVar[tuple[type[Event], ...]] = (SchedulerStepped,)

    def __init__(self, stream: EventStream, program: ProgramState) -> None:
        self._stream, self._program = stream, program
        self._states: weakref.WeakKeyDictionary[LRScheduler, _SchedulerState] = weakref.WeakKeyDictionary()
        self._built_at: weakref.WeakKeyDictionary[LRScheduler, CodePosition | None] = weakref.WeakKeyDictionary()
        self._latest: weakref.WeakKeyDictionary[Optimizer, _SchedulerState] = weakref.WeakKeyDictionary()
        """The scheduler of each optimizer that stepped last."""
        self._running = False
        self._inspect = stream.isolated("learning-rate schedules", self._rates_before)
        self._report_step = stream.isolated("learning-rate schedules", self._on_step)

    def install_always(self, patches: Patches) -> None:
        """Replace ``step`` of every scheduler class that defines it, and the constructor of OneCycleLR."""
        patches.replace(OneCycleLR, "__init__", self._one_cycle)
        for kind in _classes(LRScheduler):
            if "step" in vars(kind):
                patches.replace(kind, "step", self._replacement)

    def _one_cycle(self, original: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(original)

        def inspect_arguments(scheduler: Any, args: Any, options: Any) -> None:
            arguments = signature.bind(scheduler, *args, **options).arguments
            steps_per_epoch = None if arguments.get("total_steps") is not None else arguments.get("steps_per_epoch")
            self._states[scheduler] = _SchedulerState(
                scheduler, steps_per_epoch if isinstance(steps_per_epoch, int) else None
            )

        inspect_arguments = self._stream.isolated("learning-rate schedules", inspect_arguments)

        def __init__(scheduler: Any, *args: Any, **options: Any) -> None:  # noqa: N807
            original(scheduler, *args, **options)
            if self._stream.active:
                inspect_arguments(scheduler, args, options)

        return __init__

    def _replacement(self, original: Callable[..., Any]) -> Callable[..., Any]:
        stream, program = self._stream, self._program

        def step(scheduler: LRScheduler, *args: Any, **kwargs: Any) -> Any:
            if program.on_scheduler_step and not _in_constructor(scheduler):
                for report in program.on_scheduler_step:
                    report(scheduler)
            if (
                not stream.active
                or _is_compiling()
                or program.is_other_thread()
                or self._running
                or _in_constructor(scheduler)
            ):
                if stream.active and scheduler not in self._built_at and _in_constructor(scheduler):
                    self._built_at[scheduler] = user_location()
                return original(scheduler, *args, **kwargs)
            rates = self._inspect(scheduler)
            self._running = True
            try:
                result = original(scheduler, *args, **kwargs)
            finally:
                self._running = False
            if rates is not None:
                self._report_step(scheduler, rates, user_location(), args[0] if args else kwargs.get("metrics"))
            return result

        return step

    def _rates_before(self, scheduler: LRScheduler) -> tuple[float, ...] | None:
        """Return the learning rates before a scheduler step; None if the step is not reported."""
        optimizer = getattr(scheduler, "optimizer", None)
        if optimizer is None:
            return None
        known = self._states.get(scheduler)
        if known is None:
            known = self._states[scheduler] = _SchedulerState(scheduler)
        previous = self._latest.get(optimizer)
        known.earlier_calls = None if known.calls else 0 if previous is None else previous.calls
        known.calls += 1
        self._latest[optimizer] = known
        steps = self._steps(optimizer)
        update = self._stream.update
        since = max(steps - known.steps, update - known.update)
        known.steps, known.update = steps, update
        steps_past_end = 0 if known.planned_steps is None else _step_count(scheduler) + 1 - known.planned_steps
        # Later steps past the end are reported at powers of two.
        is_past_end = steps_past_end > 0 and (
            steps_past_end <= MAX_STEPS_PAST_END or steps_past_end & (steps_past_end - 1) == 0
        )
        is_reported = self._stream.full_tracing or since >= MIN_STEPS_BETWEEN or is_past_end
        return learning_rates(optimizer) if is_reported else None

    def _steps(self, optimizer: Any) -> int:
        known = self._program.optimizers.get(optimizer)
        return 0 if known is None else known.steps

    def _on_step(
        self, scheduler: LRScheduler, before: tuple[float, ...], location: CodePosition | None, metric: Any
    ) -> None:
        optimizer, stream = scheduler.optimizer, self._stream
        is_plateau = isinstance(scheduler, ReduceLROnPlateau)
        stream.emit(
            SchedulerStepped(
                location=location,
                built_at=self._built_at.get(scheduler),
                scheduler=stream.registry.ref(scheduler),
                kind=type(scheduler).__name__,
                optimizer=stream.registry.ref(optimizer),
                base_rate=max((r for r in getattr(scheduler, "base_lrs", ()) if isinstance(r, float)), default=0.0),
                rates_before=before,
                rates_after=learning_rates(optimizer),
                last_epoch=_step_count(scheduler),
                planned_steps=self._states[scheduler].planned_steps,
                steps_per_epoch=self._states[scheduler].steps_per_epoch,
                numbers=self._states[scheduler].numbers,
                earlier_calls=self._states[scheduler].earlier_calls,
                optimizer_steps=self._steps(optimizer),
                backwards=stream.backward_count,
                metric=_number(metric) if is_plateau else None,
                metric_names=tuple(_names_of(metric)) if is_plateau else (),
                mode=scheduler.mode if is_plateau else "",
                patience=scheduler.patience if is_plateau else None,
            )
        )


def _step_count(scheduler: Any) -> int:
    """Return the number of steps of a scheduler, or of the first member of a ChainedScheduler, which has no count."""
    parts = getattr(scheduler, "_schedulers", None)
    counter = parts[0] if parts and not hasattr(scheduler, "last_epoch") else scheduler
    return int(getattr(counter, "last_epoch", 0))


def _names_of(value: Any) -> Iterator[str]:
    """Yield the variables of the innermost user functions that hold a value, and such items of their dictionaries."""
    frame, left = sys._getframe(1), MAX_FRAMES  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001
    while frame is not None and left:
        if is_user_code(frame.f_code):
            left -= 1
            for name, held in list(variables(frame).items()):
                if held is value:
                    yield name
                elif type(held) is dict:
                    yield from (f"{name}[{key!r}]" for key, each in list(held.items()) if each is value)
        frame = frame.f_back


def _number(metric: Any) -> float | None:
    """Return a metric as a number, without a GPU synchronisation."""
    if isinstance(metric, Tensor) and not (metric.is_cpu and metric.numel() == 1):
        return None
    return float(metric) if isinstance(metric, Tensor | SupportsFloat) else None


def learning_rates(optimizer: Any) -> tuple[float, ...]:
    """Return the learning rate of each parameter group; empty if reading one needs a GPU synchronisation."""
    values: list[float] = []
    for group in optimizer.param_groups:
        rate = group.get("lr")
        if type(rate) is not float:  # nearly always a float
            if isinstance(rate, Tensor) and rate.device.type == "cpu":
                rate = rate.item()
            if not isinstance(rate, int | float):
                return ()
        values.append(float(rate))
    return tuple(values)


@functools.singledispatch
def planned_steps(scheduler: object) -> int | None:
    """Return the number of steps until the end of a schedule; None if there is no end, or if it is unknown."""
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
    """Return the earliest end of the members, since all of them step together."""
    ends = [planned_steps(part) for part in getattr(scheduler, "_schedulers", ()) if isinstance(part, ONE_SHOT)]
    return min((end for end in ends if end is not None), default=None)


_COUNTS: Final = frozenset(("last_epoch", "step_count", "num_bad_epochs"))
"""Attributes of a scheduler that count its steps."""


def numbers_of(scheduler: Any) -> tuple[int, ...]:
    """Return the integers that the functions of a LambdaLR, or a scheduler of the program, may use as their length."""
    values: list[Any] = []
    owners: list[Any] = [] if type(scheduler).__module__.startswith("torch.") else [scheduler]
    for function in scheduler.lr_lambdas if isinstance(scheduler, LambdaLR) else ():
        if isinstance(function, functools.partial):
            values += (*function.args, *function.keywords.values())
        owners.append(getattr(function, "__self__", function))
        inner = getattr(function, "__func__", function)
        if inspect.isfunction(inner):
            values += (*(inner.__defaults__ or ()), *(inner.__kwdefaults__ or {}).values())
            values += (cell.cell_contents for cell in inner.__closure__ or () if cell != types.CellType())
            values += (inner.__globals__[name] for name in inner.__code__.co_names if name in inner.__globals__)
    for owner in owners:
        attributes: dict[str, Any] = getattr(owner, "__dict__", {})
        values += (value for name, value in attributes.items() if name.strip("_") not in _COUNTS)
    return tuple(sorted({each for each in values if type(each) is int and each > 1}))


def _classes(kind: type[LRScheduler]) -> Iterator[type[LRScheduler]]:
    yield kind
    for below in kind.__subclasses__():
        yield from _classes(below)


def _in_constructor(scheduler: LRScheduler) -> bool:
    """Return True during the initial step in a scheduler's constructor."""
    caller = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001
    return caller.f_code.co_name == "_initial_step" or getattr(scheduler, "_is_initial", False)
