"""Parameters that were frozen go on moving.

What you see
    A backbone frozen in the middle of a run drifts, although its gradients are no longer computed. Its outputs, which
    something else relies on, change.

Why it happens
    ``requires_grad_(False)`` stops autograd, not the optimizer. What is left in ``.grad`` is stepped on again and
    again; where gradients are set to zeros, not to None, momentum and weight decay still move the weights.

Fix
    Clear its gradient when freezing it, ``parameter.grad = None``: parameters without a gradient are left alone. Or
    build the optimizer anew, over what is to be trained.

When this is fine
    Freezing between a backward and its step, whose gradient is fresh (both halves of a GAN updated at the end);
    gradients assigned by hand to parameters that never wanted any (evolution strategies); frozen parameters in a group
    that do not move, which only cost memory. Reported is a parameter that got gradients from backward earlier, wants
    none now, got none since this optimizer's step before, and was changed by the step.

References
    torch.Tensor.requires_grad_, https://docs.pytorch.org/docs/stable/generated/torch.Tensor.requires_grad_.html
    torch.optim.Optimizer.zero_grad,
    https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.zero_grad.html
"""

from __future__ import annotations

import weakref
from typing import ClassVar

from trueloop.core.findings import Evidence
from trueloop.core.formatting import format_count, first_few
from trueloop.failures import failure
from trueloop.failures.failure import Failure, Severity
from trueloop.failures.teaching_script import Piece, TeachingLoop
from trueloop.tracing.events import NONE, BackwardEnded, Event, Gap, Ref, Refs, StepTaken


class Detector(failure.Detector):
    """Knows which parameters ever got gradients, and which did since an optimizer's step before."""

    subscribes_to: ClassVar[tuple[type[Event], ...]] = (BackwardEnded, StepTaken, Gap)

    def __init__(self) -> None:
        self._ever: weakref.WeakSet[Ref] = weakref.WeakSet()
        self._latest: Refs = NONE
        self._since: dict[Ref, Refs] = {}
        """Optimizer -> what got gradients since its latest step; emptied by every gap."""

    def observe(self, event: BackwardEnded | StepTaken | Gap) -> Evidence | None:
        """Return evidence at a step that moved a frozen parameter without a fresh gradient."""
        if isinstance(event, BackwardEnded):
            if event.received is not self._latest:
                self._latest = event.received
                self._ever.update(event.received)
            for optimizer, received in self._since.items():
                self._since[optimizer] = received | event.received if received else event.received
        elif isinstance(event, Gap):
            self._since.clear()
        else:
            received = self._since.get(event.optimizer)
            self._since[event.optimizer] = NONE
            if event.frozen_moved and received is not None:
                return self._judge(event, event.frozen_moved - received)
        return None

    def _judge(self, event: StepTaken, moved: Refs) -> Evidence | None:
        names = sorted(ref.name for ref in moved if ref in self._ever)
        if not names:
            return None
        return Evidence(
            message=f"{format_count(len(names), 'parameter')} with requires_grad=False got no gradient since the update "
            f"before, and were changed by this one all the same: {first_few(names)}.",
            location=event.place,
        )


def inject(loop: TeachingLoop) -> None:
    """Break the teaching loop this way."""
    loop.require(bool(loop.settings["hidden"]), "There is no hidden layer to be frozen.", hidden=(16,))
    drifts = loop.settings["optimizer"] in {"momentum", "nesterov", "adam", "adamw"}
    loop.require(drifts, "This optimizer moves nothing that has a gradient of zero.", optimizer="momentum")
    loop.replace(Piece.CLEAR, "zero_grad()", "zero_grad(set_to_none=False)")
    loop.pieces[Piece.TRAIN_MODE] += "\nif epoch == 1:\n    model.layers.requires_grad_(False)"


FAILURE = Failure(
    code="OPT003",
    title="Frozen parameters go on moving",
    severity=Severity.ERROR,
    doc=__doc__ or "",
    bad="""
import torch
from torch import nn

torch.manual_seed(0)
inputs, labels = torch.randn(128, 8), torch.randint(0, 3, (128,))
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
for step in range(10):
    if step == 5:
        model[0].requires_grad_(False)
    optimizer.zero_grad(set_to_none=False)
    loss = nn.functional.cross_entropy(model(inputs), labels)
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.3f}")
""",
    good="""
import torch
from torch import nn

torch.manual_seed(0)
inputs, labels = torch.randn(128, 8), torch.randint(0, 3, (128,))
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
for step in range(10):
    if step == 5:
        model[0].requires_grad_(False)
        for parameter in model[0].parameters():
            parameter.grad = None
    optimizer.zero_grad(set_to_none=False)
    loss = nn.functional.cross_entropy(model(inputs), labels)
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.3f}")
""",
    fix="Set the gradient of a parameter to None when you freeze it.",
    detector=Detector,
    inject=inject,
)
