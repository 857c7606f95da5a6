"""Traces optimizers: their creation, their steps, and calls of ``zero_grad``, also that of modules."""

import math
import sys
import weakref
from collections.abc import Callable, Mapping
from threading import get_ident
from time import perf_counter
from types import FrameType
from typing import Any, ClassVar, Final, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from trueloop.core.findings import CodePosition
from trueloop.tracing.attach import Hook
from trueloop.tracing.events import (
    NO_REFS,
    Event,
    GradientsCleared,
    OptimizerCreated,
    PartlyTracedStep,
    Ref,
    Refs,
    StepStarted,
    StepTaken,
)
from trueloop.tracing.gradients import gradient_norms, parameters_of
from trueloop.tracing.hooks.schedules import learning_rates
from trueloop.tracing.nonfinite.localise import locate_nonfinite
from trueloop.tracing.patch import Patches
from trueloop.tracing.program_state import HandWrittenOptimizer, OptimizerState, ProgramState
from trueloop.tracing.stream import EventStream
from trueloop.tracing.user_location import ISOLATED_CALLER_DEPTH, user_location

_STEP_CODE: Final = cast("Any", Optimizer.profile_hook_step(lambda: None)).__code__
"""Code of the function that PyTorch wraps around every step."""
_is_compiling: Callable[[], bool] = torch.compiler.is_compiling
_PLAIN: Final = frozenset(("SGD", "ASGD"))  # optimizers without state by default


class StepStart(NamedTuple):
    """State recorded before a step."""

    event: StepStarted
    parameters: Refs
    live_parameters: Mapping[Ref, Tensor]
    with_gradient: Refs
    norms: Mapping[Ref, float]
    learning_rates: tuple[float, ...]
    closure: bool
    start_s: float


class Steps:
    """Emits `OptimizerCreated` always, and `StepStarted` and `StepTaken` during full tracing; counts updates always.

    A step inside another step (by a wrapper around an optimizer) is not counted. For the first step of an optimizer
    after a gap `PartlyTracedStep` is emitted, since the backward passes before it were not traced.

    Cost: 2 us in sampled tracing; in full tracing 25 us, and 1 us for each parameter.
    """

    emits: ClassVar[tuple[type[Event], ...]] = (OptimizerCreated, PartlyTracedStep, StepStarted, StepTaken)
    __slots__ = (
        "_before_step",
        "_inspect",
        "_latest",
        "_locate",
        "_nested",
        "_program",
        "_register",
        "_report",
        "_state",
        "_stream",
        "_trace_starts",
    )

    def __init__(self, stream: EventStream, program: ProgramState) -> None:
        self._stream, self._program = stream, program
        self._latest: Callable[[], Optimizer | None] = _no_optimizer
        """The optimizer that started the latest step."""
        self._state = OptimizerState()
        """State of the latest optimizer."""
        self._nested = False
        """Whether nested steps have occurred."""
        self._trace_starts = False
        """Whether the start of each step is traced, and each step is checked for nesting."""
        self._before_step: StepStart | None = None
        """State before the running step; None = the step is not fully traced."""
        program.on_thread_change.append(self._forget_latest)
        self._inspect = stream.isolated("steps of optimizers", self._on_start)
        self._report = stream.isolated("steps of optimizers", self._on_end)
        self._register = stream.isolated("optimizers", self._on_new_optimizer)
        self._locate = stream.isolated("batches with non-finite gradients", locate_nonfinite)

    def install_always(self, patches: Patches) -> None:
        """Hook every step, and replace the constructor."""
        self._state, self._before_step = OptimizerState(), None
        self._forget_latest()
        self._nested = self._trace_starts = False
        patches.add_handle(register_optimizer_step_post_hook(self._post_hook()))
        patches.replace(Optimizer, "__init__", self._constructor)

    def install_full_tracing(self, patches: Patches) -> None:
        """Trace the start of each step too."""
        for state in self._program.optimizers.values():
            state.fully_traced = False
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
        for parameter in tensors:
            registry.parameter_ref(parameter)  # names it
        stream.emit(
            OptimizerCreated(
                location=user_location(),
                optimizer=registry.ref(optimizer),
                kind=type(optimizer).__name__,
                parameters=registry.refs(tensors),
                trainable=registry.refs(p for p in tensors if p.requires_grad),
                stateful=has_state(optimizer),
                learning_rates=learning_rates(optimizer),
                groups=tuple(registry.refs(group["params"]) for group in optimizer.param_groups),
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
        finish_step, switch_optimizer, count_update = self._finish_step, self._switch_optimizer, self.count_update

        def after_step(optimizer: Optimizer, args: Any, options: Any) -> None:
            if self._trace_starts and not finish_step(optimizer):
                return
            if self._latest() is not optimizer and not switch_optimizer(optimizer):
                return
            count_update(self._state)

        return _uncompiled(after_step)

    def count_update(self, state: OptimizerState) -> None:
        """Count an update.

        Args:
            state: state of the optimizer that has stepped.
        """
        stream = self._stream
        for call in self._program.after_step[:]:  # a copy, as some remove themselves
            call()
        backwards = stream.backward_count
        window = backwards - stream.backward_count_at_step
        if window != stream.window_size:
            stream.window_size, stream.same_window_since = window, stream.update
        stream.backward_count_at_step = backwards
        state.steps += 1
        stream.update = update = stream.update + 1
        if update >= stream.next_check_update and stream.active:
            stream.after_update()

    def start_hand_written(self, optimizer: HandWrittenOptimizer) -> StepStart:
        """Return the state before an update that the program writes itself; called after each backward pass."""
        self._switch_optimizer(cast("Any", optimizer))
        return self._on_start(cast("Any", optimizer), (), {})

    def end_hand_written(
        self, optimizer: HandWrittenOptimizer, start: StepStart, location: CodePosition | None, *, climbs: bool = False
    ) -> None:
        """Report and count an update that the program writes itself.

        Args:
            optimizer: its parameters.
            start: the state after the latest backward pass.
            location: line of the update; None = unknown.
            climbs: whether the parameters moved along the gradient, not against it.
        """
        self._switch_optimizer(cast("Any", optimizer))
        start = start._replace(start_s=perf_counter())
        self._on_end(cast("Any", optimizer), self._state, start, location, climbs=climbs)
        self._program.hand_written_at = location or start.event.location
        self.count_update(self._state)
        self._program.hand_written_at = None

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
        self._latest = self._program.latest_optimizer = weakref.ref(optimizer)
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

    def _on_start(self, optimizer: Optimizer, args: tuple[Any, ...], options: dict[str, Any]) -> StepStart:
        registry, tensors = self._stream.registry, parameters_of(optimizer)
        refs, parameters = registry.ordered_refs(tensors)
        live = dict(zip(refs, tensors, strict=True))
        closure = bool(options.get("closure") or (len(args) > 1 and callable(args[1])))
        with_gradient, norms = (NO_REFS, {}) if closure else read_gradients(live, parameters)
        if not all(map(math.isfinite, norms.values())) and self._program.stepping_scaler is None:
            self._locate(self._stream, self._program)
        event = StepStarted(
            location=user_location(ISOLATED_CALLER_DEPTH),
            optimizer=registry.ref(optimizer),
            parameters=parameters,
            frozen=frozenset([ref for ref, tensor in live.items() if not tensor.requires_grad]),
            live_optimizer=optimizer,
            live_parameters=live,
        )
        self._stream.emit(event)
        rates = learning_rates(optimizer)
        return StepStart(event, parameters, live, with_gradient, norms, rates, closure, perf_counter())

    def _on_end(
        self,
        optimizer: Optimizer,
        state: OptimizerState,
        before: StepStart,
        location: CodePosition | None = None,
        *,
        climbs: bool = False,
    ) -> None:
        seconds = perf_counter() - before.start_s
        parameters, live, with_gradient, norms = before[1:5]
        if before.closure:  # the closure has computed the gradients
            with_gradient, norms = read_gradients(live, parameters)
        stream, ref, location = self._stream, before.event.optimizer, location or before.event.location
        if state.fully_traced:
            scaler = self._program.stepping_scaler and self._program.stepping_scaler()
            stream.emit(
                StepTaken(
                    location=location,
                    optimizer=ref,
                    parameters=parameters,
                    with_gradient=with_gradient,
                    live_parameters=live,
                    learning_rates=before.learning_rates,
                    grad_norm=math.hypot(*norms.values()) if norms else None,
                    gradient_norms=norms,
                    frozen=before.event.frozen,
                    scaler=None if scaler is None else stream.registry.ref(scaler),
                    closure=before.closure,
                    seconds=seconds,
                    hand_written=isinstance(optimizer, HandWrittenOptimizer),
                    climbs=climbs,
                )
            )
        else:
            stream.emit(PartlyTracedStep(location=location, optimizer=ref, parameters=parameters, live_parameters=live))
        state.fully_traced = True


class Clearing(Hook):
    """Emits `GradientsCleared` during full tracing.

    Cost: 8 us, and 0.1 us for each parameter.
    """

    emits: ClassVar[tuple[type[Event], ...]] = (GradientsCleared,)

    def __init__(self, stream: EventStream, program: ProgramState) -> None:
        self._stream, self._program = stream, program
        self._report = stream.isolated("clearing of gradients", self._on_zero_grad)
        self._in_zero_grad = False

    def install_full_tracing(self, patches: Patches) -> None:
        """Replace ``zero_grad`` of optimizers and modules; the methods of subclasses call these."""
        patches.replace(Optimizer, "zero_grad", self._replacement)
        patches.replace(nn.Module, "zero_grad", self._replacement)

    def _replacement(self, original: Callable[..., Any]) -> Callable[..., Any]:
        stream = self._stream

        def zero_grad(owner: Any, *args: Any, **options: Any) -> Any:
            if not stream.active or _is_compiling() or self._program.is_other_thread() or self._in_zero_grad:
                return original(owner, *args, **options)
            if stream.before_event is not None:
                stream.before_event()
            self._report(owner)
            self._in_zero_grad = True
            try:
                return original(owner, *args, **options)
            finally:
                self._in_zero_grad = False

        return zero_grad

    def _on_zero_grad(self, owner: Any) -> None:
        parameters = parameters_of(owner) if isinstance(owner, Optimizer) else owner.parameters()
        refs = self._stream.registry.refs([parameter for parameter in parameters if parameter.grad is not None])
        if refs:
            self._stream.emit(GradientsCleared(location=user_location(ISOLATED_CALLER_DEPTH), parameters=refs))


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


def read_gradients(live_parameters: Mapping[Ref, Tensor], parameters: Refs) -> tuple[Refs, Mapping[Ref, float]]:
    """Return the parameters with a gradient, and the norms; {} for a GPU, which would have to be synchronised."""
    gradients = {ref: gradient for ref, each in live_parameters.items() if (gradient := each.grad) is not None}
    norms = gradient_norms(list(gradients.values())) or ()
    with_gradient = parameters if len(gradients) == len(parameters) else frozenset(gradients)
    return with_gradient, dict(zip(gradients, norms, strict=False))


def has_state(optimizer: Optimizer) -> bool:
    """Return True if an optimizer has state that a new optimizer would lack."""
    if type(optimizer).__name__ not in _PLAIN:
        return True
    return any(group.get("momentum") for group in optimizer.param_groups)
