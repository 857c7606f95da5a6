"""What has happened to the gradients of each optimizer since its latest step; kept while watching in full."""

from __future__ import annotations

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

Mark = tuple[int, int | Version]
_PLAIN: Final = {Tensor}


@dataclass(slots=True)
class AccumulationWindows:
    """The windows of all optimizers, and the account of their gradients."""

    stream: EventStream
    program: ProgramState
    ledger: GradientLedger = field(default_factory=GradientLedger)
    scaled: Refs = NO_REFS
    """Parameters whose gradient is multiplied by a GradScaler's factor."""
    factor_read: bool = False
    """The program has asked a GradScaler for its factor since the latest step, perhaps to divide by it."""
    fresh: Refs = NO_REFS
    """Parameters to whose gradient a backward added something that no step has used."""
    latest: BackwardStarted | None = None
    """The latest backward."""
    latest_step_at: CodePosition | None = None
    """The latest step."""
    waiting: Callable[[Optimizer, OptimizerState, CodePosition | None], None] = lambda optimizer, known, place: None
    """Called where a backward came to the gradients of another one, and the optimizer has never stepped."""
    _as_scaled: dict[int, Mark] = field(default_factory=dict[int, Mark])
    """Gradients as the latest backwards of scaled losses have left them, by the parameter's id."""
    _known: Sequence[tuple[weakref.ref[Tensor], bool]] = ()
    """Every parameter that may get a gradient, and whether an optimizer holds it; if none does, it may be a leaf no
    more: one of a teacher that is averaged with gradients on."""
    _known_for: tuple[int, ...] = ()
    _before: Sequence[tuple[weakref.ref[Tensor], Mark | None]] = ()

    def __post_init__(self) -> None:
        self.program.on_thread_change.append(self._forget)

    def reset_after_gap(self) -> None:
        """Something was not watched: no window is whole any more, and no gradient's past is known."""
        self._forget()
        for known in self.program.optimizers.values():
            known.start_window(fully_traced=False)

    def _forget(self) -> None:
        self.ledger.clear()
        self.latest = None
        self.fresh = self.scaled = NO_REFS
        self._as_scaled.clear()
        self._known_for = self._before = ()

    def stepped(self, known: OptimizerState, holds: Sequence[Tensor], parameters: Refs, place: CodePosition | None) -> None:
        """An optimizer has stepped: its window begins anew.

        Args:
            known: of the optimizer.
            holds: all its parameters, and ``parameters`` their refs.
            place: of the step.
        """
        known.start_window(fully_traced=True)
        self.latest_step_at = place
        self.factor_read = False
        self.ledger.on_step(holds)
        self.fresh -= parameters
        self.scaled -= parameters

    def on_backward_start(self) -> None:
        """Note every gradient as it is."""
        parameters = self._parameters()
        if self.program.multi_threaded:
            self.ledger.retain_only(parameter for known, _ in parameters if (parameter := known()) is not None)
        self.ledger.on_backward_start()
        self._before = [
            (known, None if (gradient := parameter.grad) is None else _mark(gradient))
            for known, held in parameters
            if (parameter := known()) is not None and (held or parameter.is_leaf)
        ]

    def on_backward_end(self, started: BackwardStarted, scale: float | None) -> Refs:
        """Return the parameters whose gradient is not what it was when the backward began.

        Args:
            started: tells of the backward.
            scale: what GradScaler has multiplied the gradients by, 0 where that was not read; None = it has not.
        """
        self.latest, place = started, started.location
        self.ledger.on_backward_end(place)
        before, self._before = self._before, ()
        many = self.stream.registry.refs
        changed = [
            parameter
            for known, mark in before
            if (parameter := known()) is not None
            and (parameter.grad is not None if mark is None else _is_other(parameter.grad, mark))
        ]
        received = many(changed)
        if scale is not None:
            self._as_scaled.update((id(each), _mark(each.grad)) for each in changed if each.grad is not None)
        self.fresh = self.fresh | received if self.fresh else received
        self.scaled = self.scaled - received if scale is None else self.scaled | received
        for optimizer, known in self.program.optimizers.items():
            holds = parameters_of(optimizer)
            if received.isdisjoint(many(holds)):
                continue
            known.backwards += 1
            known.cleared_at = None
            known.sample_gradient = _first_left(holds)
            if known.backwards > 1:
                if not known.steps:
                    self.waiting(optimizer, known, place)
                made = joint_norm(holds)
                known.grad_norm_after_backward = None if made is None else made / (scale or 1.0)
        return received

    def find_still_scaled(self, graded: Sequence[Tensor]) -> Refs:
        """Return the parameters whose gradient nobody has changed since the backward of a scaled loss."""
        if not self.scaled or self.factor_read:
            return NO_REFS
        left = [p for p in graded if p.grad is not None and self._as_scaled.get(id(p)) == _mark(p.grad)]
        return self.scaled & self.stream.registry.refs(left)

    def cleared(self, held: Sequence[Tensor]) -> Refs:
        """The gradients of these were cleared; return those that held something no step had used."""
        self.ledger.on_cleared(held)
        parameters = self.stream.registry.refs(held)
        lost = self.fresh & parameters
        self.fresh -= parameters
        self.scaled -= parameters
        return lost

    def lost(self, parameters: Refs, place: CodePosition | None) -> None:
        """Note where what no step had used was cleared."""
        for optimizer, known in self.program.optimizers.items():
            if not parameters.isdisjoint(self.stream.registry.refs(parameters_of(optimizer))):
                known.cleared_at = place

    def _parameters(self) -> Sequence[tuple[weakref.ref[Tensor], bool]]:
        """Return every parameter of the models called and optimizers stepped in the thread that trains, each once."""
        program, optimizers = self.program, self.program.training_optimizers()
        if program.multi_threaded:
            now = (program.thread_number(), self.stream.update)
            found = {id(p): p for model, called in program.models.items() if called == now for p in model.parameters()}
            held = {id(p) for o in optimizers for p in parameters_of(o)}
            return [(weakref.ref(p), key in held) for key, p in found.items()]
        key = (program.structure_changes, *[len(optimizer.param_groups) for optimizer in optimizers])
        if key != self._known_for:
            found = {id(p): p for o in optimizers for p in parameters_of(o)}
            held = len(found)
            here = program.thread_number()
            for model, (thread, _) in program.models.items():
                if thread == here:
                    found.update((id(p), p) for p in model.parameters())
            self._known = [(weakref.ref(p), place < held) for place, p in enumerate(found.values())]
            self._known_for = key
        return self._known


def parameters_of(optimizer: Optimizer) -> list[Tensor]:
    """Return what an optimizer holds."""
    groups = optimizer.param_groups
    if len(groups) == 1:
        return list(groups[0]["params"])
    return [parameter for group in groups for parameter in group["params"]]


def joint_norm(parameters: Sequence[Tensor]) -> float | None:
    """Return the L2 norm of all gradients together; None where it would have to be waited for, or there is none."""
    norms = gradient_norms([p.grad for p in parameters if p.grad is not None])
    return None if norms is None else math.hypot(*norms)


def gradient_norms(gradients: Sequence[Tensor]) -> list[float] | None:
    """Return the norm of each gradient, in order; None unless all of them are plain numbers on the CPU."""
    if not gradients:
        return None
    local = gradients
    if set(map(type, gradients)) != _PLAIN or not gradients[0].is_cpu or gradients[0].is_complex():
        local = [plain for gradient in gradients if (plain := local_shard(gradient)) is not None]
        if len(local) < len(gradients) or not all(plain.is_cpu and not plain.is_complex() for plain in local):
            return None
    try:
        norms = list(map(torch.linalg.vector_norm, local))  # what _foreach_norm does, too, and leaner for a few
    except (NotImplementedError, RuntimeError):  # one of the others is sparse, or elsewhere
        return None
    return [norm.item() for norm in norms] if all(norm.is_cpu for norm in norms) else None


def _first_left(parameters: Sequence[Tensor]) -> tuple[weakref.ref[Tensor], weakref.ref[Tensor]] | None:
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is not None:
            return weakref.ref(parameter), weakref.ref(gradient)
    return None


def _is_other(gradient: Tensor | None, mark: Mark) -> bool:
    return gradient is None or mark != _mark(gradient)


def _mark(gradient: Tensor) -> Mark:
    if type(gradient) is Tensor:
        return id(gradient), gradient._version  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    return id(gradient), version_of(gradient)
