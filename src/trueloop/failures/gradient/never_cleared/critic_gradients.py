"""Finds gradients that the loss of a GAN's critic leaves in the generator, which steps with them too.

The critic's loss reaches the generator if the generated samples are not detached. That is harmless if the generator's
gradients are cleared before its own loss. A shared encoder with an optimizer of its own is no such case: the gradients
that its later losses leave in a head are used, whereas those of a generator's loss in the critic are discarded.
"""

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from trueloop.core.findings import CodePosition, Evidence, Severity
from trueloop.failures.gradient.never_cleared.leftover_gradients import MIN_STEPS, is_enough, is_present
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

MAX_OPTIMIZERS: Final = 8


class _Backward(NamedTuple):
    location: CodePosition | None
    reached: Refs


class _Step(NamedTuple):
    """A step of the generator, of which the gradients in the critic are not used or discarded yet."""

    critic: Refs
    call: str
    backward_at: CodePosition | None
    location: CodePosition | None
    present: Any


@dataclass(slots=True)
class _Generator:
    """What is known of one optimizer since its gradients were cleared or used."""

    parameters: Refs
    called: int = 0
    """Number of model calls before the latest call of its model with a graph."""
    backward: _Backward | None = None
    """The first backward pass to reach its parameters."""
    later: Refs = NO_REFS
    """Parameters of other optimizers that this pass reached, whose models were called after its own."""
    critic: Refs = NO_REFS
    """Those of ``later`` with which the other optimizer has stepped since."""
    present: Any = None
    """Whether the gradients were nonzero when its own backward pass started: a tensor on their device."""
    has_own: bool = False
    """Whether its own loss, through the critic, has added to the gradients."""
    pending: _Step | None = None
    steps: int = 0
    steps_present: Any = 0

    def close(self) -> None:
        """Forget the gradients, which were cleared or used."""
        self.backward, self.later, self.critic, self.present, self.has_own = None, NO_REFS, NO_REFS, None, False


class CriticGradients:
    """Keeps, for each optimizer, whether its gradients come from a loss with which another one has stepped."""

    def __init__(self) -> None:
        self._generators: dict[Ref, _Generator] = {}
        self._calls = 0

    def on_gap(self) -> None:
        """Forget all gradients."""
        for each in self._generators.values():
            each.close()
            each.pending = None

    def on_model_called(self, event: ModelCalled) -> None:
        """Record the order of the models."""
        self._calls += 1
        for each in self._generators.values():
            if event.has_graph and not each.parameters.isdisjoint(event.parameters):
                each.called = self._calls

    def on_backward_started(self, event: BackwardStarted) -> None:
        """Check whether the program has cleared the gradients itself."""
        for each in self._generators.values():
            if each.critic and each.backward is not None:
                each.present = is_present(each.backward.reached & each.parameters, event.live_parameters)

    def on_backward_ended(self, event: BackwardEnded) -> None:
        """Record the backward pass for each optimizer whose gradients it has changed."""
        reached = event.reached_parameters
        for each in self._generators.values():
            if each.parameters.isdisjoint(reached):
                continue
            if each.backward is None:
                others = [o.parameters for o in self._generators.values() if 0 < each.called < o.called]
                each.backward = _Backward(event.location, reached)
                each.later = NO_REFS.union(*others) & reached - each.parameters if others else NO_REFS
            elif each.critic:  # two players only, and the same parameters of both in each loss
                each.has_own = each.critic <= reached <= each.backward.reached

    def on_gradients_cleared(self, event: GradientsCleared) -> Evidence | None:
        """Return evidence after enough steps whose gradients in the critic are discarded, as of a generator's loss."""
        found: Evidence | None = None
        for each in self._generators.values():
            step = each.pending
            if step is not None and not step.critic.isdisjoint(event.parameters):
                each.pending = None
                found = _count(each, step) or found
            if not each.parameters.isdisjoint(event.parameters):
                each.close()
        return found

    def on_step_taken(self, event: StepTaken) -> None:
        """Record which of the two has stepped."""
        if event.optimizer not in self._generators and len(self._generators) < MAX_OPTIMIZERS:
            self._generators[event.optimizer] = _Generator(event.parameters)
        for optimizer, each in self._generators.items():
            if optimizer is event.optimizer:
                if each.has_own and each.backward is not None:
                    each.pending = _Step(each.critic, event.call, each.backward.location, event.location, each.present)
                each.close()
                continue
            if each.pending is not None and not each.pending.critic.isdisjoint(event.parameters):
                each.pending = None
            used = each.later & event.parameters
            if used:
                each.critic, each.has_own = used, False


def _count(generator: _Generator, step: _Step) -> Evidence | None:
    if not is_enough(generator, step.present):
        return None
    return Evidence(
        message=f"{step.call} also used the gradients of a loss with which another optimizer has stepped: this "
        f"`backward()` added to them, and nothing cleared them before the optimizer's own loss, in "
        f"{int(generator.steps_present)} of {MIN_STEPS} steps.",
        location=step.backward_at,
        severity=Severity.WARNING,
        related=((step.location, "the step that used both"),) if step.location else (),
        fix="Detach the generated samples for this loss, `critic(fake.detach())`, or call zero_grad() of the other "
        "optimizer directly before the backward() of its own loss.",
    )
