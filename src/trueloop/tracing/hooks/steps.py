"""Traces optimizers and their steps."""

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

MAX_VALUES: Final = 4096  # values of a frozen parameter that are compared before and after a step
_STEP_CODE: Final = cast("Any", Optimizer.profile_hook_step(lambda: None)).__code__
"""Code of the function that PyTorch wraps around every step."""
_DIVIDING: Final = frozenset(("Adam", "AdamW", "NAdam", "RMSprop"))  # optimizers that divide by a root plus epsilon
MIN_FLOAT16_EPS: Final = 2.0**-25  # half of the smallest float16; smaller values round to zero
_PLAIN: Final = frozenset(("SGD", "ASGD"))  # optimizers without state by default


class _Norms(NamedTuple):
    """Gradient norms, if they can be read without a GPU synchronisation."""

    joint: float | None = None
    each: Sequence[float] = ()
    zero: Sequence[Tensor] = ()
    nonfinite: Sequence[Tensor] = ()


class _Before(NamedTuple):
    """State recorded before a step."""

    tensors: list[Tensor]
    with_grad: list[Tensor]
    reused: list[Tensor]
    reused_at: CodePosition | None
    scaled: Refs
    already_used: list[Tensor]
    norms: _Norms
    frozen: list[tuple[Tensor, Tensor | None]]
    location: CodePosition | None
    learning_rates: tuple[float, ...]
    closure: bool
    replaced: bool
    start_s: float


class Steps:
    """Emits `OptimizerCreated` always, and `StepTaken` during full tracing; counts updates always.

    A step inside another step (by a wrapper around an optimizer) is not counted. The first step of an optimizer after a
    gap is not emitted, since the backward passes before it were not traced.

    Cost: 2 us in sampled tracing; in full tracing 25 us, and 1 us for each parameter.
    """

    emits: ClassVar[tuple[type[Event], ...]] = (OptimizerCreated, StepTaken)
    __slots__ = (
        "_before_step",
        "_inspect",
        "_latest",
        "_latest_owned",
        "_leftover",
        "_locate",
        "_nested",
        "_owners",
        "_program",
        "_register",
        "_report",
        "_state",
        "_stream",
        "_trace_starts",
        "_windows",
    )

    def __init__(self, stream: EventStream, program: ProgramState, windows: AccumulationWindows) -> None:
        self._stream, self._program, self._windows = stream, program, windows
        self._owners: weakref.WeakKeyDictionary[Ref, weakref.ref[Ref]] = weakref.WeakKeyDictionary()
        """Parameter -> the optimizer that stepped it last; weak, as detectors keep the parameters of an optimizer."""
        self._latest_owned: tuple[Ref, Refs] | None = None
        """The latest optimizer, and its parameters as recorded in ``_owners``."""
        self._latest: Callable[[], Optimizer | None] = _no_optimizer
        """The optimizer that started the latest step."""
        self._state = OptimizerState()
        """State of the latest optimizer."""
        self._nested = False
        """Whether nested steps have occurred."""
        self._trace_starts = False
        """Whether the start of each step is traced, and each step is checked for nesting."""
        self._before_step: _Before | None = None
        """State before the running step; None = the step is not fully traced."""
        program.on_thread_change.append(self._forget_latest)
        self._inspect = stream.isolated("steps of optimizers", self._on_start)
        self._report = stream.isolated("steps of optimizers", self._on_end)
        self._register = stream.isolated("optimizers", self._on_new_optimizer)
        self._locate = stream.isolated("batches with non-finite gradients", locate_nonfinite)
        self._leftover = stream.isolated("incomplete windows", check_at_step)

    def install_always(self, patches: Patches) -> None:
        """Hook every step, and replace the constructor."""
        self._state, self._before_step = OptimizerState(), None
        self._forget_latest()
        self._nested = self._trace_starts = False
        patches.add_handle(register_optimizer_step_post_hook(self._post_hook()))
        patches.replace(Optimizer, "__init__", self._constructor)

    def install_full_tracing(self, patches: Patches) -> None:
        """Trace the start of each step too."""
        self._trace_starts = True
        patches.add_handle(self)
        patches.add_handle(register_optimizer_step_pre_hook(_uncompiled(self._pre_hook)))

    def remove(self) -> None:
        """Stop tracing step starts; called when full tracing stops."""
        self._trace_starts, self._program.step_depth = self._nested, 0

    def _constructor(self, original: Callable[..., None]) -> Callable[..., None]:
        def __init__(optimizer: Any, *args: Any, **options: Any) -> None:  # noqa: N807
            original(optimizer, *args, **options)
            if self._stream.active:
                self._register(optimizer)
                state = self._program.optimizers.get(optimizer)
                if state is not None:
                    state.fully_traced = True

        return __init__

    def _on_new_optimizer(self, optimizer: Optimizer) -> None:
        stream, registry = self._stream, self._stream.registry
        if self._program.optimizers.get(optimizer) is not None:
            return
        self._program.optimizers.put(optimizer, OptimizerState())
        self._program.optimizers_seen += 1
        tensors = parameters_of(optimizer)
        ref = registry.ref(optimizer)
        owners = (self._owners.get(registry.parameter_ref(parameter), _no_optimizer)() for parameter in tensors)
        before = {id(owner): owner for owner in owners if owner is not None and owner is not ref}
        stream.emit(
            OptimizerCreated(
                location=user_location(),
                optimizer=ref,
                kind=type(optimizer).__name__,
                parameters=registry.refs(tensors),
                trainable=registry.refs(p for p in tensors if p.requires_grad),
                stateful=_stateful(optimizer),
                predecessors=tuple(before.values()),
            )
        )
        stream.request_full_tracing()

    def _pre_hook(self, optimizer: Optimizer, args: Any, options: Any) -> None:
        stream, program = self._stream, self._program
        if not stream.active or self._is_other_thread():
            return
        if program.step_depth and (depth := depth_of_step()) > 1:
            program.step_depth, self._nested = depth, True
            return
        program.step_depth = 1
        if self._latest() is not optimizer:
            self._switch_optimizer(optimizer)
        if stream.full_tracing:
            self._before_step = self._inspect(optimizer, args, options)

    def _post_hook(self) -> Callable[[Optimizer, Any, Any], None]:
        """Return the hook that counts steps; the CPU caches are cold when it runs, so each attribute costs 100 ns."""
        stream, program, finish_step, switch_optimizer, leftover = (
            self._stream,
            self._program,
            self._finish_step,
            self._switch_optimizer,
            self._leftover,
        )

        def after_step(optimizer: Optimizer, args: Any, options: Any) -> None:
            if self._trace_starts and not finish_step(optimizer):
                return
            if self._latest() is not optimizer and not switch_optimizer(optimizer):
                return
            if program.leftover is not None:
                leftover(stream, program)
            backwards = stream.backward_count
            window = backwards - stream.backward_count_at_step
            if window != stream.window_size:
                stream.window_size, stream.same_window_since = window, stream.update
            stream.backward_count_at_step = backwards
            self._state.steps += 1
            stream.update = update = stream.update + 1
            if update >= stream.next_check_update and stream.active:
                stream.after_update()

        return _uncompiled(after_step)

    def _finish_step(self, optimizer: Optimizer) -> bool:
        """Report a step whose start was traced; return False if the start was not traced or the step is nested."""
        stream, program = self._stream, self._program
        if self._is_other_thread():
            return False
        depth = depth_of_step() if self._nested else program.step_depth
        program.step_depth = max(0, program.step_depth - 1)
        if depth > 1 or not stream.active:
            return False
        before, self._before_step = self._before_step, None
        if before is not None and stream.full_tracing:
            self._report(optimizer, self._state, before)
        return True

    def _switch_optimizer(self, optimizer: Optimizer) -> bool:
        """Record an optimizer as the latest; return False on another thread than the training thread."""
        if self._is_other_thread():
            return False
        self._latest = weakref.ref(optimizer)
        self._state = self._program.optimizers.get(optimizer) or self._register_late(optimizer)
        self._state.in_training_thread = True
        return True

    def _is_other_thread(self) -> bool:
        program = self._program
        return program.training_thread != get_ident() and not (self._stream.active and program.is_training_thread())

    def _forget_latest(self) -> None:
        """Forget the latest optimizer when the training thread changes."""
        self._latest = _no_optimizer

    def _register_late(self, optimizer: Optimizer) -> OptimizerState:
        if self._stream.active:
            self._register(optimizer)
        return self._program.optimizers.get(optimizer) or self._program.optimizers.put(optimizer, OptimizerState())

    def _on_start(self, optimizer: Optimizer, args: tuple[Any, ...], options: dict[str, Any]) -> _Before:
        tensors = parameters_of(optimizer)
        closure = bool(options.get("closure") or (len(args) > 1 and callable(args[1])))
        with_grad = [p for p in tensors if p.grad is not None]
        ledger = self._windows.ledger
        reused, reused_at = ledger.find_reused(with_grad)
        frozen = [
            (p, p.detach().flatten()[:MAX_VALUES].clone() if p.grad is not None and p.is_cpu else None)
            for p in tensors
            if not p.requires_grad
        ]
        norms = _Norms() if closure else _norms(with_grad)
        if norms.nonfinite and self._program.stepping_scaler is None:
            self._locate(self._stream, self._program)
        replaced = self._state.gradients_replaced()
        scaled, already_used = self._windows.still_scaled(with_grad), ledger.find_used(with_grad)
        return _Before(
            tensors,
            with_grad,
            reused,
            reused_at,
            scaled,
            already_used,
            norms,
            frozen,
            user_location(ISOLATED_CALLER_DEPTH),
            learning_rates(optimizer),
            closure,
            replaced,
            perf_counter(),
        )

    def _on_end(self, optimizer: Optimizer, state: OptimizerState, before: _Before) -> None:
        seconds = perf_counter() - before.start_s
        tensors, with_grad, reused, location = before.tensors, before.with_grad, before.reused, before.reused_at
        norms = before.norms
        if before.closure:  # the closure has computed the gradients
            with_grad = [p for p in tensors if p.grad is not None]
            reused, location = self._windows.ledger.find_reused(with_grad)
            norms = _norms(with_grad)
        registry = self._stream.registry
        refs_of, uncached_refs_of, ref = registry.refs, registry.uncached_refs, registry.ref(optimizer)
        ordered_refs, parameters = registry.ordered_refs(tensors)
        if state.fully_traced:
            latest = self._windows.latest_backward
            all_with_grad = len(with_grad) == len(tensors)
            changed = [p for p, values in before.frozen if values is not None and _has_changed(p, values)]
            scaler = self._program.stepping_scaler and self._program.stepping_scaler()
            self._stream.emit(
                StepTaken(
                    location=before.location,
                    optimizer=ref,
                    learning_rates=before.learning_rates,
                    parameters=parameters,
                    with_gradient=parameters if all_with_grad else uncached_refs_of(with_grad),
                    reused_gradients=uncached_refs_of(reused) if reused else NO_REFS,
                    reused_at=location,
                    backwards=state.backwards,
                    cleared_between=state.backwards > 0 and not with_grad,
                    cleared_at=state.cleared_at,
                    gradients_replaced=before.replaced,
                    grad_norm=norms.joint,
                    grad_norm_after_backward=state.grad_norm_after_backward,
                    zero_gradients=uncached_refs_of(norms.zero) if norms.zero else NO_REFS,
                    nonfinite_gradients=uncached_refs_of(norms.nonfinite) if norms.nonfinite else NO_REFS,
                    frozen_changed=uncached_refs_of(changed) if changed else NO_REFS,
                    frozen=refs_of(p for p, _ in before.frozen) if before.frozen else NO_REFS,
                    scaler=None if scaler is None else registry.ref(scaler),
                    closure=before.closure,
                    seconds=seconds,
                    norm_parameters=()
                    if not norms.each
                    else ordered_refs
                    if all_with_grad
                    else tuple(map(registry.ref, with_grad)),
                    parameter_norms=tuple(norms.each),
                    underflowing_eps=_underflowing_eps(optimizer),
                    still_scaled=before.scaled,
                    already_used=refs_of(before.already_used) if before.already_used else NO_REFS,
                    already_used_at=self._windows.latest_step_at if before.already_used else None,
                    loader=None if latest is None else latest.loader,
                    batch=0 if latest is None else latest.batch,
                )
            )
        if self._latest_owned != (ref, parameters):
            self._latest_owned = ref, parameters
            owner = weakref.ref(ref)
            for parameter in parameters:
                self._owners[parameter] = owner
        self._windows.on_step(state, tensors, parameters, before.location)


def _no_optimizer() -> None:
    """Return None, as a weak reference to a freed optimizer does."""


def _uncompiled(hook: Callable[..., None]) -> Callable[..., None]:
    """Exclude a hook from torch.compile, and return it."""
    cast("Any", getattr(hook, "__func__", hook))._torchdynamo_disable = True  # noqa: SLF001
    return hook


def depth_of_step() -> int:
    """Return the number of running steps on the stack, which is right even after a step that raised."""
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001
    depth = 0
    while frame is not None:
        depth += frame.f_code is _STEP_CODE
        frame = frame.f_back
    return max(1, depth)


def _norms(with_grad: Sequence[Tensor]) -> _Norms:
    """Return the norms of gradients on the CPU; empty for a GPU, which would have to be synchronised."""
    norms = gradient_norms(cast("list[Tensor]", [p.grad for p in with_grad]))
    if norms is None:
        return _Norms()
    joint = math.hypot(*norms)
    if min(norms) > 0 and joint < math.inf:
        return _Norms(joint, norms)
    zero = [p for p, norm in zip(with_grad, norms, strict=True) if norm == 0]
    nonfinite = [p for p, norm in zip(with_grad, norms, strict=True) if not math.isfinite(norm)]
    return _Norms(joint, norms, zero, nonfinite)


def _underflowing_eps(optimizer: Optimizer) -> float | None:
    """Return an epsilon that rounds to zero in float16, the type of its parameters; None if there is none."""
    for group in optimizer.param_groups:
        if group["params"] and group["params"][0].dtype is torch.float16:
            kind = type(optimizer)
            divides = kind.__name__ in _DIVIDING and kind.__module__.startswith("torch.optim")
            if divides and not group.get("fused") and 0 < group["eps"] < MIN_FLOAT16_EPS:
                return float(group["eps"])
    return None


def _has_changed(parameter: Tensor, values: Tensor) -> bool:
    return not torch.equal(parameter.detach().flatten()[:MAX_VALUES], values)


def _stateful(optimizer: Optimizer) -> bool:
    """Return True if an optimizer has state that a new optimizer would lack."""
    if type(optimizer).__name__ not in _PLAIN:
        return True
    return any(group.get("momentum") for group in optimizer.param_groups)
