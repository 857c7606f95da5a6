"""Tracks what happened to the gradients of each optimizer since its latest step, during full tracing."""

import math
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor
from torch.optim import Optimizer

from trueloop.core.findings import CodePosition
from trueloop.tracing.events import NO_REFS, BackwardStarted, Refs
from trueloop.tracing.gradient_ledger import GradientLedger, Version, local_shard, version_of
from trueloop.tracing.program_state import OptimizerState, ProgramState
from trueloop.tracing.stream import EventStream

GradientVersion = tuple[int, int | Version]
_PLAIN: Final = {Tensor}


@dataclass(slots=True)
class AccumulationWindows:
    """The accumulation windows of all optimizers, and the ledger of their gradients."""

    stream: EventStream
    program: ProgramState
    ledger: GradientLedger = field(default_factory=GradientLedger)
    scaled: Refs = NO_REFS
    """Parameters whose gradient is multiplied by a GradScaler's factor."""
    factor_read: bool = False
    """Whether the program has read a GradScaler's factor since the latest step, perhaps to divide by it."""
    unused: Refs = NO_REFS
    """Parameters with a contribution to their gradient that no step has used."""
    latest_backward: BackwardStarted | None = None
    latest_step_at: CodePosition | None = None
    on_missing_step: Callable[[Optimizer, OptimizerState, CodePosition | None], None] = lambda optimizer, state, at: (
        None
    )
    """Called for an optimizer that has never stepped, at its second and each later backward pass."""
    _scaled_versions: dict[int, GradientVersion] = field(default_factory=dict[int, GradientVersion])
    """Id of a parameter -> version of its gradient after the latest backward pass of a scaled loss."""
    _parameter_refs: Sequence[tuple[weakref.ref[Tensor], bool]] = ()
    """Every parameter that may get a gradient, and whether an optimizer has it. Others may not be leaves any longer, as
    in a teacher model that is averaged with gradients enabled."""
    _cache_key: tuple[int, ...] = ()
    _before: Sequence[tuple[weakref.ref[Tensor], GradientVersion | None]] = ()

    def __post_init__(self) -> None:
        self.program.on_thread_change.append(self._forget)

    def reset_after_gap(self) -> None:
        """Discard all windows and the ledger after updates that were not fully traced."""
        self._forget()
        for state in self.program.optimizers.values():
            state.start_window(fully_traced=False)

    def _forget(self) -> None:
        self.ledger.clear()
        self.latest_backward = None
        self.unused = self.scaled = NO_REFS
        self._scaled_versions.clear()
        self._cache_key = self._before = ()

    def on_step(
        self, state: OptimizerState, tensors: Sequence[Tensor], parameters: Refs, location: CodePosition | None
    ) -> None:
        """Begin a new window after a step.

        Args:
            state: state of the optimizer.
            tensors: all parameters of the optimizer.
            parameters: refs of these parameters.
            location: line of the step.
        """
        state.start_window(fully_traced=True)
        self.latest_step_at = location
        self.factor_read = False
        self.ledger.on_step(tensors)
        self.unused -= parameters
        self.scaled -= parameters

    def on_backward_start(self) -> None:
        """Record the version of every gradient."""
        parameters = self._parameters()
        if self.program.multi_threaded:
            self.ledger.retain_only(parameter for each, _ in parameters if (parameter := each()) is not None)
        self.ledger.on_backward_start()
        self._before = [
            (reference, None if (gradient := parameter.grad) is None else _gradient_version(gradient))
            for reference, in_optimizer in parameters
            if (parameter := reference()) is not None and (in_optimizer or parameter.is_leaf)
        ]

    def on_backward_end(self, started: BackwardStarted, scale: float | None) -> Refs:
        """Return the parameters whose gradient has changed since the backward pass started.

        Args:
            started: the event of the start.
            scale: GradScaler's factor in the gradients; 0 = the factor was not read, None = the loss is not scaled.
        """
        self.latest_backward, location = started, started.location
        self.ledger.on_backward_end(location)
        before, self._before = self._before, ()
        refs = self.stream.registry.refs
        changed = [
            parameter
            for reference, version in before
            if (parameter := reference()) is not None
            and (parameter.grad is not None if version is None else _has_changed(parameter.grad, version))
        ]
        received = refs(changed)
        if scale is not None:
            self._scaled_versions.update(
                (id(each), _gradient_version(each.grad)) for each in changed if each.grad is not None
            )
        self.unused = self.unused | received if self.unused else received
        self.scaled = self.scaled - received if scale is None else self.scaled | received
        for optimizer, state in self.program.optimizers.items():
            parameters = parameters_of(optimizer)
            if received.isdisjoint(refs(parameters)):
                continue
            state.backwards += 1
            state.cleared_at = None
            state.sample_gradient = _first_gradient(parameters)
            if state.backwards > 1:
                if not state.steps:
                    self.on_missing_step(optimizer, state, location)
                norm = joint_norm(parameters)
                state.grad_norm_after_backward = None if norm is None else norm / (scale or 1.0)
        return received

    def still_scaled(self, with_grad: Sequence[Tensor]) -> Refs:
        """Return the parameters whose gradient has not changed since the backward pass of a scaled loss."""
        if not self.scaled or self.factor_read:
            return NO_REFS
        unchanged = [
            p for p in with_grad if p.grad is not None and self._scaled_versions.get(id(p)) == _gradient_version(p.grad)
        ]
        return self.scaled & self.stream.registry.refs(unchanged)

    def on_cleared(self, tensors: Sequence[Tensor]) -> Refs:
        """Record that gradients were cleared; return the parameters with a contribution that no step had used."""
        self.ledger.on_cleared(tensors)
        parameters = self.stream.registry.refs(tensors)
        lost = self.unused & parameters
        self.unused -= parameters
        self.scaled -= parameters
        return lost

    def record_cleared_at(self, parameters: Refs, location: CodePosition | None) -> None:
        """Record the line that cleared unused gradients."""
        for optimizer, state in self.program.optimizers.items():
            if not parameters.isdisjoint(self.stream.registry.refs(parameters_of(optimizer))):
                state.cleared_at = location

    def _parameters(self) -> Sequence[tuple[weakref.ref[Tensor], bool]]:
        """Return each parameter once of the models called and the optimizers stepped in the training thread."""
        program, optimizers = self.program, self.program.training_optimizers()
        if program.multi_threaded:
            now = (program.thread_number(), self.stream.update)
            found = {id(p): p for model, called in program.models.items() if called == now for p in model.parameters()}
            in_optimizers = {id(p) for o in optimizers for p in parameters_of(o)}
            return [(weakref.ref(p), key in in_optimizers) for key, p in found.items()]
        key = (program.structure_changes, *[len(optimizer.param_groups) for optimizer in optimizers])
        if key != self._cache_key:
            found = {id(p): p for o in optimizers for p in parameters_of(o)}
            in_optimizers = len(found)
            own_thread = program.thread_number()
            for model, (thread, _) in program.models.items():
                if thread == own_thread:
                    found.update((id(p), p) for p in model.parameters())
            self._parameter_refs = [(weakref.ref(p), index < in_optimizers) for index, p in enumerate(found.values())]
            self._cache_key = key
        return self._parameter_refs


def parameters_of(optimizer: Optimizer) -> list[Tensor]:
    """Return the parameters of an optimizer."""
    groups = optimizer.param_groups
    if len(groups) == 1:
        return list(groups[0]["params"])
    return [parameter for group in groups for parameter in group["params"]]


def joint_norm(parameters: Sequence[Tensor]) -> float | None:
    """Return the joint L2 norm of all gradients; None without a gradient, or if they are on a GPU."""
    norms = gradient_norms([p.grad for p in parameters if p.grad is not None])
    return None if norms is None else math.hypot(*norms)


def gradient_norms(gradients: Sequence[Tensor]) -> list[float] | None:
    """Return the norm of each gradient, in order; None unless all of them are dense real tensors on the CPU."""
    if not gradients:
        return None
    local = gradients
    if set(map(type, gradients)) != _PLAIN or not gradients[0].is_cpu or gradients[0].is_complex():
        local = [plain for gradient in gradients if (plain := local_shard(gradient)) is not None]
        if len(local) < len(gradients) or not all(plain.is_cpu and not plain.is_complex() for plain in local):
            return None
    try:
        norms = list(map(torch.linalg.vector_norm, local))  # like _foreach_norm, with less overhead for few tensors
    except (NotImplementedError, RuntimeError):  # some gradient is sparse, or on another device
        return None
    return [norm.item() for norm in norms] if all(norm.is_cpu for norm in norms) else None


def _first_gradient(parameters: Sequence[Tensor]) -> tuple[weakref.ref[Tensor], weakref.ref[Tensor]] | None:
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is not None:
            return weakref.ref(parameter), weakref.ref(gradient)
    return None


def _has_changed(gradient: Tensor | None, version: GradientVersion) -> bool:
    return gradient is None or version != _gradient_version(gradient)


def _gradient_version(gradient: Tensor) -> GradientVersion:
    if type(gradient) is Tensor:
        return id(gradient), gradient._version  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    return id(gradient), version_of(gradient)
