"""Finds gradients that the loss of one optimizer leaves in the parameters of another, as in a GAN.

A generator's loss is computed through the discriminator, so its backward pass adds to the discriminator's gradients
too. They must be cleared before the discriminator's own loss. Two heads of one encoder are no such case: there the
parameters that both losses reach come before those of the heads, not after them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from trueloop.core.findings import CodePosition, Evidence, Severity
from trueloop.tracing.events import (
    NO_REFS,
    BackwardEnded,
    BackwardStarted,
    GradientsCleared,
    ModelCalled,
    Ref,
    Refs,
    StepTaken,
)

MIN_STEPS: Final = 24  # with leftover gradients
MIN_PRESENT: Final = 20  # of these steps, in which the leftover gradients were not zero
MAX_BACKWARDS: Final = 8  # since the gradients were cleared
MAX_OPTIMIZERS: Final = 8


class _Backward(NamedTuple):
    location: CodePosition | None
    reached: Refs
    upstream: Refs
    """Parameters of other optimizers whose model was called before that of this one."""


@dataclass(slots=True)
class _Account:
    """The backward passes that have added to the gradients of one optimizer since they were cleared or used."""

    parameters: Refs
    called: int = 0
    """Number of model calls before the latest call of its model with a graph."""
    backwards: list[_Backward] = field(default_factory=list[_Backward])
    leftover: _Backward | None = None
    """A backward pass after which another optimizer stepped."""
    present: Any = None
    """Whether the leftover gradients were nonzero when its own backward pass started: a tensor on their device."""
    is_added: bool = False
    """Whether its own backward pass has added to the leftover gradients."""
    steps: int = 0
    steps_present: Any = 0
    """Number of ``steps`` in which they were nonzero: a tensor on their device."""

    def close(self) -> None:
        """Forget the gradients, which were cleared or used."""
        self.backwards, self.leftover, self.present, self.is_added = [], None, None, False


class LeftoverGradients:
    """Keeps, for each optimizer, which backward passes have added to its gradients."""

    def __init__(self) -> None:
        self._accounts: dict[Ref, _Account] = {}
        self._calls = 0

    def on_gap(self) -> None:
        """Forget all gradients."""
        for account in self._accounts.values():
            account.close()

    def on_model_called(self, event: ModelCalled) -> None:
        """Record the order of the models."""
        self._calls += 1
        for account in self._accounts.values():
            if event.has_graph and not account.parameters.isdisjoint(event.parameters):
                account.called = self._calls

    def on_backward_started(self, event: BackwardStarted) -> None:
        """Check whether the program has cleared the leftover gradients itself."""
        for account in self._accounts.values():
            if account.leftover is not None and account.present is None:
                account.present = is_present(account.leftover.reached & account.parameters, event.live_parameters)

    def on_backward_ended(self, event: BackwardEnded) -> None:
        """Record the backward pass for each optimizer to whose gradients it has added."""
        for account in self._accounts.values():
            if account.parameters.isdisjoint(event.reached_parameters):
                continue
            if account.leftover is not None:
                account.is_added |= account.leftover.upstream.isdisjoint(event.reached_parameters)
            others = [o.parameters for o in self._accounts.values() if 0 < o.called < account.called]
            upstream = NO_REFS.union(*others) & event.reached_parameters - account.parameters if others else NO_REFS
            if len(account.backwards) < MAX_BACKWARDS:
                account.backwards.append(_Backward(event.location, event.reached_parameters, upstream))

    def on_gradients_cleared(self, event: GradientsCleared) -> None:
        """Forget the cleared gradients."""
        for account in self._accounts.values():
            if not account.parameters.isdisjoint(event.parameters):
                account.close()

    def on_step_taken(self, event: StepTaken) -> Evidence | None:
        """Return evidence after enough steps with leftover gradients."""
        found: Evidence | None = None
        if event.optimizer not in self._accounts and len(self._accounts) < MAX_OPTIMIZERS:
            self._accounts[event.optimizer] = _Account(event.parameters)
        for optimizer, account in self._accounts.items():
            if optimizer is event.optimizer:
                found = _count_step(account, event)
                account.close()
            elif account.parameters.isdisjoint(event.parameters):
                consumed = (each for each in account.backwards if not each.upstream.isdisjoint(event.parameters))
                account.leftover = account.leftover or next(consumed, None)
        return found


def is_present(parameters: Refs, live: Mapping[Ref, Any]) -> Any:
    """Return whether a gradient of some parameters is not zero, as a tensor on its device."""
    gradients = (live[ref].grad for ref in sorted(parameters, key=lambda each: each.name) if ref in live)
    gradient = next((each for each in gradients if each is not None), None)
    return False if gradient is None else gradient.detach().abs().sum() > 0


def is_enough(account: Any, present: Any) -> bool:
    """Count a step, and return True if the gradients of another loss were not zero in most of the first steps.

    Args:
        account: has the number of steps, and of those with such gradients.
        present: whether this step had them; None if it is unknown.
    """
    if present is None or account.steps >= MIN_STEPS:
        return False
    account.steps += 1
    account.steps_present = account.steps_present + present
    return account.steps == MIN_STEPS and int(account.steps_present) >= MIN_PRESENT


def _count_step(account: _Account, event: StepTaken) -> Evidence | None:
    left = account.leftover
    if left is None or not account.is_added or not is_enough(account, account.present):
        return None
    return Evidence(
        message=f"{event.call} also used the gradients of a loss with which another optimizer has stepped: they were "
        f"not cleared before `backward()` of its own loss, in {int(account.steps_present)} of {MIN_STEPS} steps.",
        location=event.location,
        severity=Severity.WARNING,
        related=((left.location, "this loss leaves gradients behind"),) if left.location else (),
        fix="Call zero_grad() of this optimizer directly before the backward() of its own loss.",
    )
