"""Steps of optimizers, and optimizers themselves."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Sequence
from time import perf_counter
from types import FrameType
from typing import Any, Final, NamedTuple, cast

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from trueloop.engines.watch.localise import locate
from trueloop.engines.watch.patch import Patches
from trueloop.engines.watch.places import here
from trueloop.engines.watch.program import Program
from trueloop.engines.watch.sources.leftovers import at_step
from trueloop.engines.watch.sources.schedules import rates
from trueloop.engines.watch.stream import Stream
from trueloop.engines.watch.window import Windows, gradient_norms, parameters_of
from trueloop.ground.events import OptimizerCreated, Ref, StepTaken
from trueloop.ground.findings import Place

SLICE: Final = 4096  # values of a frozen parameter that are compared over a step
_STEP_CODE: Final = cast("Any", Optimizer.profile_hook_step(lambda: None)).__code__
"""Of the function that torch wraps around every step."""
_PLAIN: Final = frozenset(("SGD", "ASGD"))  # hold no moments unless asked to


class _Norms(NamedTuple):
    """What the gradients are, where it can be read without waiting."""

    joint: float | None
    zero: Sequence[Tensor]
    not_finite: Sequence[Tensor]


class _Before(NamedTuple):
    """What is remembered while a step runs."""

    holds: list[Tensor]
    graded: list[Tensor]
    reused: list[Tensor]
    reused_from: Place | None
    norms: _Norms
    frozen: list[tuple[Tensor, Tensor | None]]
    place: Place | None
    rates: tuple[float, ...]
    closure: bool
    start_s: float


class Steps:
    """Tells `OptimizerCreated` always, and `StepTaken` while watching in full; counts updates always.

    A step inside another one (a wrapper around an optimizer) is part of it. The first step of an optimizer after a
    stretch that was not watched is not told: what led to it was not seen.

    Cost: 1 us lightly; in full 20 us and 1 us for each parameter.
    """

    def __init__(self, stream: Stream, program: Program, windows: Windows) -> None:
        self._stream, self._program, self._windows = stream, program, windows
        self._before: _Before | None = None
        self._owners: weakref.WeakKeyDictionary[Ref, Ref] = weakref.WeakKeyDictionary()
        """Parameter -> the optimizer that stepped it last."""
        self._look = stream.fenced("steps of optimizers", self._begin)
        self._tell = stream.fenced("steps of optimizers", self._end)
        self._meet = stream.fenced("optimizers", self._met)
        self._locate = stream.fenced("batches with gradients that are not finite", locate)
        self._leftover = stream.fenced("windows left over", at_step)

    def always(self, patches: Patches) -> None:
        """Hook every step, and replace the constructor."""

        def before(optimizer: Optimizer, args: Any, options: Any) -> None:
            if self._stream.on and self._program.trains_here():
                self._began(optimizer, args, options)

        def after(optimizer: Optimizer, args: Any, options: Any) -> None:
            if self._stream.on and not self._program.elsewhere():
                self._ended(optimizer)

        for hook in (before, after):
            cast("Any", hook)._torchdynamo_disable = True  # noqa: SLF001
        patches.hook(register_optimizer_step_pre_hook(before))
        patches.hook(register_optimizer_step_post_hook(after))
        patches.replace(Optimizer, "__init__", self._constructor)

    def in_full(self, patches: Patches) -> None:
        """Nothing more is needed."""

    def _constructor(self, original: Callable[..., None]) -> Callable[..., None]:
        def __init__(optimizer: Any, *args: Any, **options: Any) -> None:  # noqa: N807
            original(optimizer, *args, **options)
            if self._stream.on:
                self._meet(optimizer)
                self._windows.of(optimizer).whole = True

        return __init__

    def _met(self, optimizer: Optimizer) -> None:
        stream, registry = self._stream, self._stream.registry
        if optimizer in self._program.optimizers:
            return
        self._program.optimizers.add(optimizer)
        holds = parameters_of(optimizer)
        ref = registry.of(optimizer)
        owners = (self._owners.get(registry.parameter(parameter)) for parameter in holds)
        before = {id(owner): owner for owner in owners if owner is not None and owner is not ref}
        stream.emit(
            OptimizerCreated,
            here(),
            optimizer=ref,
            kind=type(optimizer).__name__,
            parameters=registry.many(holds),
            trainable=registry.many(p for p in holds if p.requires_grad),
            stateful=_stateful(optimizer),
            predecessors=tuple(before.values()),
        )
        stream.wake()

    def _began(self, optimizer: Optimizer, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        program = self._program
        program.in_step = 1 if program.in_step == 0 else _depth()
        if program.in_step > 1:
            return
        if optimizer not in program.optimizers:
            self._meet(optimizer)
        self._before = self._look(optimizer, args, options) if self._stream.full else None

    def _ended(self, optimizer: Optimizer) -> None:
        program, stream = self._program, self._stream
        program.in_step = max(0, program.in_step - 1)
        if program.in_step:
            return
        before, self._before = self._before, None
        if before is not None and stream.full:
            self._tell(optimizer, before)
        if program.leftover is not None:
            self._leftover(stream, program)
        program.alike = program.alike + 1 if program.window == program.pending else 1
        program.window = program.pending
        program.mine.add(optimizer)
        program.steps[optimizer] = program.steps.get(optimizer, 0) + 1
        program.pending = 0
        stream.update += 1
        stream.after_update()
        for look in stream.looks:
            look()

    def _begin(self, optimizer: Optimizer, args: tuple[Any, ...], options: dict[str, Any]) -> _Before:
        holds = parameters_of(optimizer)
        closure = bool(options.get("closure") or (len(args) > 1 and callable(args[1])))
        graded = [p for p in holds if p.grad is not None]
        reused, reused_from = self._windows.account.mixed(graded)
        norms = _norms(graded)
        if norms.not_finite and not closure and self._program.stepping_scaler is None:
            self._locate(self._stream, self._program)
        frozen = [
            (p, p.detach().flatten()[:SLICE].clone() if p.grad is not None and p.device.type == "cpu" else None)
            for p in holds
            if not p.requires_grad
        ]
        return _Before(
            holds,
            graded,
            reused,
            reused_from,
            norms,
            frozen,
            here(),
            rates(optimizer),
            closure,
            perf_counter(),
        )

    def _end(self, optimizer: Optimizer, before: _Before) -> None:
        seconds = perf_counter() - before.start_s
        holds, graded, reused, place = before.holds, before.graded, before.reused, before.reused_from
        norms = before.norms
        if before.closure:  # what it used was made within it
            graded = [p for p in holds if p.grad is not None]
            reused, place = self._windows.account.mixed(graded)
            norms = _norms(graded)
        window, many = self._windows.of(optimizer), self._stream.registry.many
        if window.whole:
            moved = [p for p, values in before.frozen if values is not None and _moved(p, values)]
            scaler = self._program.stepping_scaler and self._program.stepping_scaler()
            self._stream.emit(
                StepTaken,
                before.place,
                optimizer=self._stream.registry.of(optimizer),
                rates=before.rates,
                parameters=many(holds),
                with_gradient=many(graded),
                reused=many(reused),
                reused_from=place,
                backwards=window.backwards,
                cleared_between=window.backwards > 0 and not graded,
                cleared_at=window.cleared_at,
                norm=norms.joint,
                norm_made=window.norm_made,
                zero=many(norms.zero),
                not_finite=many(norms.not_finite),
                frozen_moved=many(moved),
                frozen=many(p for p, _ in before.frozen),
                scaler=None if scaler is None else self._stream.registry.of(scaler),
                closure=before.closure,
                seconds=seconds,
            )
        ref = self._stream.registry.of(optimizer)
        for parameter in many(holds):
            self._owners[parameter] = ref
        self._windows.stepped(optimizer, holds)


def _depth() -> int:
    """Count the steps on the stack: one that raised has left no other trace."""
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001
    depth = 0
    while frame is not None:
        depth += frame.f_code is _STEP_CODE
        frame = frame.f_back
    return max(1, depth)


def _norms(graded: Sequence[Tensor]) -> _Norms:
    """Read the norms of gradients that lie on the CPU; of others nothing, since they would have to be waited for."""
    norms = gradient_norms(graded)
    if norms is None:
        return _Norms(None, (), ())
    values = norms.tolist()
    zero = [p for p, value in zip(graded, values, strict=True) if value == 0]
    wild = [p for p, value in zip(graded, values, strict=True) if value - value != 0]
    return _Norms(float(norms.norm()), zero, wild)


def _moved(parameter: Tensor, values: Tensor) -> bool:
    return not torch.equal(parameter.detach().flatten()[:SLICE], values)


def _stateful(optimizer: Optimizer) -> bool:
    """True where an optimizer keeps moments that a new one would not have."""
    if type(optimizer).__name__ not in _PLAIN:
        return True
    return any(group.get("momentum") for group in optimizer.param_groups)
