"""What has happened to the gradients of each optimizer since its latest step; kept while watching in full."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.optim import Optimizer

from trueloop.engines.watch.gradients import Account, Version, local_of, version_of
from trueloop.engines.watch.program import Program
from trueloop.engines.watch.stream import Stream
from trueloop.ground.findings import Place

Mark = tuple[int, Version]


@dataclass(slots=True)
class Window:
    """Of one optimizer, between two of its steps."""

    backwards: int = 0
    """That reached one of its parameters."""
    norm_made: float | None = None
    """Joint norm of its gradients after the latest backward, read in windows of several."""
    cleared_at: Place | None = None
    """The latest clearing of its parameters, after the latest backward that reached them."""
    whole: bool = False
    """It was watched in full since the step before, or since the optimizer was built."""


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
    _of: weakref.WeakKeyDictionary[Optimizer, Window] = field(
        default_factory=weakref.WeakKeyDictionary[Optimizer, Window]
    )
    _known: Sequence[weakref.ref[Tensor]] = ()
    _known_for: tuple[int, ...] = ()
    _before: dict[int, Mark] = field(default_factory=dict[int, Mark])

    def of(self, optimizer: Optimizer) -> Window:
        """Return the window of an optimizer."""
        window = self._of.get(optimizer)
        if window is None:
            window = self._of[optimizer] = Window()
        return window

    def interrupted(self) -> None:
        """Something was not watched: no window is whole any more, and no gradient's past is known."""
        self.account.forget()
        self.fresh.clear()
        self.scaled.clear()
        self._known_for = ()
        for window in self._of.values():
            window.whole, window.backwards, window.cleared_at, window.norm_made = False, 0, None, None

    def stepped(self, optimizer: Optimizer, parameters: Iterable[Tensor]) -> None:
        """An optimizer has stepped: its window begins anew."""
        parameters = list(parameters)
        window = self.of(optimizer)
        window.backwards, window.cleared_at, window.norm_made, window.whole = 0, None, None, True
        self.account.stepped(parameters)
        self.scaled.difference_update(map(id, parameters))
        self.fresh.difference_update(map(id, parameters))

    def backward_begins(self) -> None:
        """Note every gradient as it is."""
        self.account.backward_begins()
        self._before = {id(parameter): _mark(parameter) for parameter in self.parameters()}

    def backward_ended(self, place: Place | None, scale: float | None) -> list[Tensor]:
        """Return the parameters whose gradient is not what it was when the backward began.

        Args:
            place: of the backward.
            scale: what GradScaler has multiplied the gradients by, 0 where that was not read; None = it has not.
        """
        self.account.backward_ended(place)
        before, self._before = self._before, {}
        nothing = (0, (0, 0))
        received = [
            parameter for parameter in self.parameters() if _mark(parameter) != before.get(id(parameter), nothing)
        ]
        reached = set(map(id, received))
        self.fresh |= reached
        self.scaled = self.scaled - reached if scale is None else self.scaled | reached
        for optimizer in list(self.program.optimizers):
            if any(id(parameter) in reached for parameter in parameters_of(optimizer)):
                window = self.of(optimizer)
                window.backwards += 1
                window.cleared_at = None
                if window.backwards > 1:
                    made = joint_norm(parameters_of(optimizer))
                    window.norm_made = None if made is None else made / (scale or 1.0)
        return received

    def cleared(self, parameters: Sequence[Tensor], place: Place | None) -> list[Tensor]:
        """The gradients of these were cleared; return those that held something no step had used."""
        self.account.cleared(parameters)
        ids = set(map(id, parameters))
        lost = [parameter for parameter in parameters if id(parameter) in self.fresh]
        self.fresh -= ids
        self.scaled -= ids
        for optimizer in list(self.program.optimizers):
            if any(id(parameter) in ids for parameter in parameters_of(optimizer)):
                self.of(optimizer).cleared_at = place
        return lost

    def parameters(self) -> list[Tensor]:
        """Return every parameter of the models called and optimizers stepped in the thread that trains, each once."""
        program = self.program
        models = [model for model, thread in list(program.models.items()) if thread == program.thread]
        optimizers = list(program.mine)
        key = (program.structures, *map(id, models), *(id(group) for o in optimizers for group in o.param_groups))
        if key != self._known_for:
            found = {id(p): p for o in optimizers for p in parameters_of(o)}
            for model in models:
                found.update((id(p), p) for p in model.parameters())
            self._known, self._known_for = [weakref.ref(p) for p in found.values()], key
        return [parameter for known in self._known if (parameter := known()) is not None]


def parameters_of(optimizer: Optimizer) -> list[Tensor]:
    """Return what an optimizer holds."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def joint_norm(parameters: Sequence[Tensor]) -> float | None:
    """Return the L2 norm of all gradients together; None where it would have to be waited for, or there is none."""
    norms = gradient_norms(parameters)
    return None if norms is None else float(norms.norm())


def gradient_norms(parameters: Sequence[Tensor]) -> Tensor | None:
    """Return the norm of each gradient there is, in order; None unless all of them are plain numbers on the CPU."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    local = [g for gradient in gradients if (g := local_of(gradient)) is not None]
    if not local or len(local) < len(gradients) or any(g.device.type != "cpu" or g.is_complex() for g in local):
        return None
    return torch.stack([n.float() for n in torch._foreach_norm(local)])  # noqa: SLF001  # pyright: ignore[reportPrivateUsage, reportArgumentType]


def _mark(parameter: Tensor) -> Mark:
    gradient = parameter.grad
    return (0, (0, 0)) if gradient is None else (id(gradient), version_of(gradient))
