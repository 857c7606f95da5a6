"""What has happened to the gradients of each optimizer since its latest step; kept while watching in full."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.optim import Optimizer

from trueloop.engines.watch.gradients import Account, Version, local_of, version_of
from trueloop.engines.watch.program import Known, Program
from trueloop.engines.watch.stream import Stream
from trueloop.ground.findings import Place

Mark = tuple[int, Version]


@dataclass(slots=True)
class Windows:
    """The windows of all optimizers, and the account of their gradients."""

    stream: Stream
    program: Program
    account: Account = field(default_factory=Account)
    scaled: set[int] = field(default_factory=set[int])
    """Parameters, by id, whose gradient is multiplied by a GradScaler's factor."""
    fresh: set[int] = field(default_factory=set[int])
    """Parameters, by id, to whose gradient a backward added something that no step has used."""
    _known: Sequence[weakref.ref[Tensor]] = ()
    _known_for: tuple[int, ...] = ()
    _before: dict[int, Mark] = field(default_factory=dict[int, Mark])

    def interrupted(self) -> None:
        """Something was not watched: no window is whole any more, and no gradient's past is known."""
        self.account.forget()
        self.fresh.clear()
        self.scaled.clear()
        self._known_for = ()
        for known in self.program.optimizers.facts():
            known.begin(whole=False)

    def stepped(self, known: Known, parameters: Sequence[Tensor]) -> None:
        """An optimizer has stepped: its window begins anew."""
        known.begin(whole=True)
        self.account.stepped(parameters)
        ids = list(map(id, parameters))
        self.fresh.difference_update(ids)
        if self.scaled:
            self.scaled.difference_update(ids)

    def backward_begins(self) -> None:
        """Note every gradient as it is."""
        self.account.backward_begins()
        self._before = {
            id(parameter): (id(gradient), version_of(gradient))
            for parameter in self.parameters()
            if (gradient := parameter.grad) is not None
        }

    def backward_ended(self, place: Place | None, scale: float | None) -> list[Tensor]:
        """Return the parameters whose gradient is not what it was when the backward began.

        Args:
            place: of the backward.
            scale: what GradScaler has multiplied the gradients by, 0 where that was not read; None = it has not.
        """
        self.account.backward_ended(place)
        before, self._before = self._before, {}
        received = [parameter for parameter in self.parameters() if _mark(parameter) != before.get(id(parameter))]
        reached = set(map(id, received))
        self.fresh |= reached
        if scale is not None:
            self.scaled |= reached
        elif self.scaled:
            self.scaled -= reached
        for optimizer, known in self.program.optimizers.items():
            holds = parameters_of(optimizer)
            if reached.isdisjoint(map(id, holds)):
                continue
            known.backwards += 1
            known.cleared_at = None
            if known.backwards > 1:
                made = joint_norm(holds)
                known.norm_made = None if made is None else made / (scale or 1.0)
        return received

    def cleared(self, parameters: Sequence[Tensor], place: Place | None) -> list[Tensor]:
        """The gradients of these were cleared; return those that held something no step had used."""
        self.account.cleared(parameters)
        ids = set(map(id, parameters))
        lost = [parameter for parameter in parameters if id(parameter) in self.fresh]
        self.fresh -= ids
        self.scaled -= ids
        for optimizer, known in self.program.optimizers.items():
            if not ids.isdisjoint(map(id, parameters_of(optimizer))):
                known.cleared_at = place
        return lost

    def parameters(self) -> list[Tensor]:
        """Return every parameter of the models called and optimizers stepped in the thread that trains, each once."""
        program = self.program
        optimizers = program.mine()
        key = (program.structures, *(len(optimizer.param_groups) for optimizer in optimizers))
        if key != self._known_for:
            found = {id(p): p for o in optimizers for p in parameters_of(o)}
            for model, thread in program.models.items():
                if thread == program.thread:
                    found.update((id(p), p) for p in model.parameters())
            self._known, self._known_for = [weakref.ref(p) for p in found.values()], key
        return [parameter for known in self._known if (parameter := known()) is not None]


def parameters_of(optimizer: Optimizer) -> list[Tensor]:
    """Return what an optimizer holds."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def joint_norm(parameters: Sequence[Tensor]) -> float | None:
    """Return the L2 norm of all gradients together; None where it would have to be waited for, or there is none."""
    norms = gradient_norms([p.grad for p in parameters if p.grad is not None])
    return None if norms is None else math.hypot(*norms)


def gradient_norms(gradients: Sequence[Tensor]) -> list[float] | None:
    """Return the norm of each gradient, in order; None unless all of them are plain numbers on the CPU."""
    local: list[Tensor] = []
    for gradient in gradients:
        plain = local_of(gradient)
        if plain is None or not plain.is_cpu or plain.is_complex():
            return None
        local.append(plain)
    if not local:
        return None
    norms = torch._foreach_norm(local)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage, reportArgumentType]
    return [norm.item() for norm in norms]


def _mark(parameter: Tensor) -> Mark | None:
    gradient = parameter.grad
    return None if gradient is None else (id(gradient), version_of(gradient))
