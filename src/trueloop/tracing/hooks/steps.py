"""Steps of optimizers, and optimizers themselves."""

from __future__ import annotations

import math
import sys
import weakref
from collections.abc import Callable, Sequence
from threading import get_ident
from time import perf_counter
from types import FrameType
from typing import Any, ClassVar, Final, NamedTuple, cast

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from trueloop.core.findings import CodePosition
from trueloop.tracing.accumulation_window import AccumulationWindows, gradient_norms, parameters_of
from trueloop.tracing.events import NO_REFS, Event, OptimizerCreated, Ref, Refs, StepTaken
from trueloop.tracing.hooks.schedules import learning_rates
from trueloop.tracing.hooks.window_leftovers import check_at_step
from trueloop.tracing.nonfinite.localise import locate_nonfinite
from trueloop.tracing.patch import Patches
from trueloop.tracing.program_state import OptimizerState, ProgramState
from trueloop.tracing.stream import EventStream
from trueloop.tracing.user_location import ISOLATED_CALLER_DEPTH, user_location

SLICE: Final = 4096  # values of a frozen parameter that are compared over a step
_STEP_CODE: Final = cast("Any", Optimizer.profile_hook_step(lambda: None)).__code__
"""Of the function that torch wraps around every step."""
_DIVIDING: Final = frozenset(("Adam", "AdamW", "NAdam", "RMSprop"))  # by a root, to which they add an epsilon
LOST: Final = 2.0**-25  # half of the smallest float16: what is smaller rounds to zero
_PLAIN: Final = frozenset(("SGD", "ASGD"))  # hold no moments unless asked to


class _Norms(NamedTuple):
    """What the gradients are, where it can be read without waiting."""

    joint: float | None = None
    each: Sequence[float] = ()
    zero: Sequence[Tensor] = ()
    not_finite: Sequence[Tensor] = ()


class _Before(NamedTuple):
    """What is remembered while a step runs."""

    holds: list[Tensor]
    graded: list[Tensor]
    reused: list[Tensor]
    reused_from: CodePosition | None
    scaled: Refs
    used: list[Tensor]
    norms: _Norms
    frozen: list[tuple[Tensor, Tensor | None]]
    place: CodePosition | None
    rates: tuple[float, ...]
    closure: bool
    replaced: bool
    start_s: float


class Steps:
    """Tells `OptimizerCreated` always, and `StepTaken` while watching in full; counts updates always.

    A step inside another one (a wrapper around an optimizer) is part of it. The first step of an optimizer after a
    stretch that was not watched is not told: what led to it was not seen.

    Cost: 2 us lightly; in full 25 us and 1 us for each parameter.
    """

    emits: ClassVar[tuple[type[Event], ...]] = (OptimizerCreated, StepTaken)
    __slots__ = (
        "_closely", "_known", "_latest", "_leftover", "_locate", "_look", "_meet", "_nests", "_noted", "_owned",
        "_owners", "_program", "_stream", "_tell", "_windows",
    )  # fmt: skip

    def __init__(self, stream: EventStream, program: ProgramState, windows: AccumulationWindows) -> None:
        self._stream, self._program, self._windows = stream, program, windows
        self._owners: weakref.WeakKeyDictionary[Ref, Ref] = weakref.WeakKeyDictionary()
        """Parameter -> the optimizer that stepped it last."""
        self._owned: tuple[Ref, Refs] | None = None
        """The optimizer that stepped last, and what: these are known to be its own."""
        self._latest: Callable[[], Optimizer | None] = _nobody
        """The optimizer that stepped, or began to, last."""
        self._known = OptimizerState()
        """Of that one."""
        self._nests = False
        """Steps were seen within steps."""
        self._closely = False
        """It is asked of each step whether it is one within another, and its begin may have been seen."""
        self._noted: _Before | None = None
        """What was noted before the step that is on its way, if that is watched in full."""
        program.on_thread_change.append(self._forget)
        self._look = stream.isolated("steps of optimizers", self._begin)
        self._tell = stream.isolated("steps of optimizers", self._end)
        self._meet = stream.isolated("optimizers", self._met)
        self._locate = stream.isolated("batches with gradients that are not finite", locate_nonfinite)
        self._leftover = stream.isolated("incomplete windows", check_at_step)

    def install_always(self, patches: Patches) -> None:
        """Hook every step, and replace the constructor."""
        self._known, self._noted = OptimizerState(), None
        self._forget()
        self._nests = self._closely = False
        patches.add_handle(register_optimizer_step_post_hook(self._post_hook()))
        patches.replace(Optimizer, "__init__", self._constructor)

    def install_full_tracing(self, patches: Patches) -> None:
        """See steps begin, too."""
        self._closely = True
        patches.add_handle(self)
        patches.add_handle(register_optimizer_step_pre_hook(_uncompiled(self._before)))

    def remove(self) -> None:
        """See them begin no more; called with the hooks of the full view."""
        self._closely, self._program.step_depth = self._nests, 0

    def _constructor(self, original: Callable[..., None]) -> Callable[..., None]:
        def __init__(optimizer: Any, *args: Any, **options: Any) -> None:  # noqa: N807
            original(optimizer, *args, **options)
            if self._stream.active:
                self._meet(optimizer)
                known = self._program.optimizers.get(optimizer)
                if known is not None:
                    known.fully_traced = True

        return __init__

    def _met(self, optimizer: Optimizer) -> None:
        stream, registry = self._stream, self._stream.registry
        if self._program.optimizers.get(optimizer) is not None:
            return
        self._program.optimizers.put(optimizer, OptimizerState())
        self._program.optimizers_seen += 1
        holds = parameters_of(optimizer)
        ref = registry.ref(optimizer)
        owners = (self._owners.get(registry.parameter_ref(parameter)) for parameter in holds)
        before = {id(owner): owner for owner in owners if owner is not None and owner is not ref}
        stream.emit(
            OptimizerCreated(
                location=user_location(),
                optimizer=ref,
                kind=type(optimizer).__name__,
                parameters=registry.refs(holds),
                trainable=registry.refs(p for p in holds if p.requires_grad),
                stateful=_stateful(optimizer),
                predecessors=tuple(before.values()),
            )
        )
        stream.request_full_tracing()

    def _before(self, optimizer: Optimizer, args: Any, options: Any) -> None:
        stream, program = self._stream, self._program
        if not stream.active or self._elsewhere():
            return
        if program.step_depth and (depth := depth_of_step()) > 1:
            program.step_depth, self._nests = depth, True
            return
        program.step_depth = 1
        if self._latest() is not optimizer:
            self._turn(optimizer)
        if stream.full_tracing:
            self._noted = self._look(optimizer, args, options)

    def _post_hook(self) -> Callable[[Optimizer, Any, Any], None]:
        """Return what counts steps; it runs with cold caches, so that each thing it looks at costs 100 ns."""
        stream, program, leave, turn, leftover = self._stream, self._program, self._leave, self._turn, self._leftover

        def after(optimizer: Optimizer, args: Any, options: Any) -> None:
            if self._closely and not leave(optimizer):
                return
            if self._latest() is not optimizer and not turn(optimizer):
                return
            if program.leftover is not None:
                leftover(stream, program)
            micro = stream.backward_count
            window = micro - stream.backward_count_at_step
            if window != stream.window_size:
                stream.window_size, stream.same_window_since = window, stream.update
            stream.backward_count_at_step = micro
            self._known.steps += 1
            stream.update = update = stream.update + 1
            if update >= stream.next_check_update and stream.active:
                stream.after_update()

        return _uncompiled(after)

    def _leave(self, optimizer: Optimizer) -> bool:
        """Tell of the step, if it was seen to begin; False = it was not, or it is part of another one."""
        stream, program = self._stream, self._program
        if self._elsewhere():
            return False
        depth = depth_of_step() if self._nests else program.step_depth
        program.step_depth = max(0, program.step_depth - 1)
        if depth > 1 or not stream.active:
            return False
        noted, self._noted = self._noted, None
        if noted is not None and stream.full_tracing:
            self._tell(optimizer, self._known, noted)
        return True

    def _turn(self, optimizer: Optimizer) -> bool:
        """Another optimizer steps than before; False = in another thread than the one that trains."""
        if self._elsewhere():
            return False
        self._latest = weakref.ref(optimizer)
        self._known = self._program.optimizers.get(optimizer) or self._first_seen(optimizer)
        self._known.in_training_thread = True
        return True

    def _elsewhere(self) -> bool:
        program = self._program
        return program.training_thread != get_ident() and not (self._stream.active and program.is_training_thread())

    def _forget(self) -> None:
        """Nobody steps yet: it is another thread that trains."""
        self._latest = _nobody

    def _first_seen(self, optimizer: Optimizer) -> OptimizerState:
        if self._stream.active:
            self._meet(optimizer)
        return self._program.optimizers.get(optimizer) or self._program.optimizers.put(optimizer, OptimizerState())

    def _begin(self, optimizer: Optimizer, args: tuple[Any, ...], options: dict[str, Any]) -> _Before:
        holds = parameters_of(optimizer)
        closure = bool(options.get("closure") or (len(args) > 1 and callable(args[1])))
        graded = [p for p in holds if p.grad is not None]
        ledger = self._windows.ledger
        reused, reused_from = ledger.find_reused(graded)
        frozen = [
            (p, p.detach().flatten()[:SLICE].clone() if p.grad is not None and p.is_cpu else None)
            for p in holds
            if not p.requires_grad
        ]
        norms = _Norms() if closure else _norms(graded)
        if norms.not_finite and self._program.stepping_scaler is None:
            self._locate(self._stream, self._program)
        replaced = self._known.gradients_replaced()
        scaled, used = self._windows.still_scaled(graded), ledger.find_used(graded)
        return _Before(
            holds, graded, reused, reused_from, scaled, used, norms, frozen, user_location(ISOLATED_CALLER_DEPTH), learning_rates(optimizer), closure,
            replaced, perf_counter(),
        )  # fmt: skip

    def _end(self, optimizer: Optimizer, known: OptimizerState, before: _Before) -> None:
        seconds = perf_counter() - before.start_s
        holds, graded, reused, place = before.holds, before.graded, before.reused, before.reused_from
        norms = before.norms
        if before.closure:  # what it used was made within it
            graded = [p for p in holds if p.grad is not None]
            reused, place = self._windows.ledger.find_reused(graded)
            norms = _norms(graded)
        registry = self._stream.registry
        many, some, ref = registry.refs, registry.uncached_refs, registry.ref(optimizer)
        ordered_refs, parameters = registry.ordered_refs(holds)
        if known.fully_traced:
            latest = self._windows.latest_backward
            all_graded = len(graded) == len(holds)
            moved = [p for p, values in before.frozen if values is not None and _moved(p, values)]
            scaler = self._program.stepping_scaler and self._program.stepping_scaler()
            self._stream.emit(
                StepTaken(
                    location=before.place,
                    optimizer=ref,
                    learning_rates=before.rates,
                    parameters=parameters,
                    with_gradient=parameters if all_graded else some(graded),
                    reused_gradients=some(reused) if reused else NO_REFS,
                    reused_at=place,
                    backwards=known.backwards,
                    cleared_between=known.backwards > 0 and not graded,
                    cleared_at=known.cleared_at,
                    gradients_replaced=before.replaced,
                    grad_norm=norms.joint,
                    grad_norm_after_backward=known.grad_norm_after_backward,
                    zero_gradients=some(norms.zero) if norms.zero else NO_REFS,
                    nonfinite_gradients=some(norms.not_finite) if norms.not_finite else NO_REFS,
                    frozen_changed=some(moved) if moved else NO_REFS,
                    frozen=many(p for p, _ in before.frozen) if before.frozen else NO_REFS,
                    scaler=None if scaler is None else registry.ref(scaler),
                    closure=before.closure,
                    seconds=seconds,
                    norm_parameters=()
                    if not norms.each
                    else ordered_refs
                    if all_graded
                    else tuple(map(registry.ref, graded)),
                    parameter_norms=tuple(norms.each),
                    underflowing_eps=_epsilon_lost(optimizer),
                    still_scaled=before.scaled,
                    already_used=many(before.used) if before.used else NO_REFS,
                    already_used_at=self._windows.latest_step_at if before.used else None,
                    loader=None if latest is None else latest.loader,
                    batch=0 if latest is None else latest.batch,
                )
            )
        if self._owned != (ref, parameters):
            self._owned = ref, parameters
            for parameter in parameters:
                self._owners[parameter] = ref
        self._windows.on_step(known, holds, parameters, before.place)


def _nobody() -> None:
    """Stands for a reference to an optimizer that is gone."""


def _uncompiled(hook: Callable[..., None]) -> Callable[..., None]:
    """Return a hook that torch.compile runs as it is."""
    cast("Any", getattr(hook, "__func__", hook))._torchdynamo_disable = True  # noqa: SLF001
    return hook


def depth_of_step() -> int:
    """Count the steps on the stack: one that raised has left no other trace."""
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001
    depth = 0
    while frame is not None:
        depth += frame.f_code is _STEP_CODE
        frame = frame.f_back
    return max(1, depth)


def _norms(graded: Sequence[Tensor]) -> _Norms:
    """Read the norms of gradients that lie on the CPU; of others nothing, since they would have to be waited for."""
    norms = gradient_norms(cast("list[Tensor]", [p.grad for p in graded]))
    if norms is None:
        return _Norms()
    joint = math.hypot(*norms)
    if min(norms) > 0 and joint < math.inf:
        return _Norms(joint, norms)
    zero = [p for p, norm in zip(graded, norms, strict=True) if norm == 0]
    has_nan_or_positive_inf = [p for p, norm in zip(graded, norms, strict=True) if not math.isfinite(norm)]
    return _Norms(joint, norms, zero, has_nan_or_positive_inf)


def _epsilon_lost(optimizer: Optimizer) -> float | None:
    """Return an epsilon that is zero in the type of what it is for."""
    for group in optimizer.param_groups:
        if group["params"] and group["params"][0].dtype is torch.float16:
            kind = type(optimizer)
            divides = kind.__name__ in _DIVIDING and kind.__module__.startswith("torch.optim")
            if divides and not group.get("fused") and 0 < group["eps"] < LOST:
                return float(group["eps"])
    return None


def _moved(parameter: Tensor, values: Tensor) -> bool:
    return not torch.equal(parameter.detach().flatten()[:SLICE], values)


def _stateful(optimizer: Optimizer) -> bool:
    """True where an optimizer keeps moments that a new one would not have."""
    if type(optimizer).__name__ not in _PLAIN:
        return True
    return any(group.get("momentum") for group in optimizer.param_groups)
