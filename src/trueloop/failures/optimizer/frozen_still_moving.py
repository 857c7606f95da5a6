"""Frozen parameters keep changing, because the optimizer still updates them.

What you see
    A part of the model was frozen in the middle of a run (``requires_grad=False``), but its weights still change.

Why it happens
    ``requires_grad_(False)`` stops new gradients, but not the optimizer. The old gradient in ``.grad`` is applied again
    at every step. Even if it is set to zeros, momentum and weight decay still change the weight.

Fix
    Delete the gradients when you freeze parameters: an optimizer skips parameters whose ``.grad`` is None.

        backbone.requires_grad_(False)
        for parameter in backbone.parameters():
            parameter.grad = None

When this is fine
    - You freeze the parameters between ``backward()`` and ``step()``, so their gradient is new, as in a GAN.
    - You assign gradients by hand to parameters that no backward pass reaches (evolution strategies).
    - The optimizer contains frozen parameters that do not change.

How it is detected
    In a run, the sanitizer reports a step that changed a parameter with ``requires_grad=False``, if the parameter had
    gradients earlier but got no new gradient since this optimizer's previous step.

References
    torch.Tensor.requires_grad_, https://docs.pytorch.org/docs/stable/generated/torch.Tensor.requires_grad_.html
    torch.optim.Optimizer.zero_grad,
    https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.zero_grad.html
"""

import weakref
from typing import Any, Final

from trueloop.core.findings import Evidence
from trueloop.core.formatting import first_few, format_count
from trueloop.failures.failure import BaseDetector, Failure, Severity, changed
from trueloop.failures.teaching_script import Piece, TeachingLoop
from trueloop.tracing.events import NO_REFS, BackwardEnded, Ref, Refs, StepStarted, StepTaken
from trueloop.tracing.trackers.accumulation_windows import AccumulationWindows

MAX_VALUES: Final = 4096  # values of a frozen parameter that are compared before and after a step


class Detector(BaseDetector):
    """Tracks which parameters ever got gradients, and compares the frozen ones before and after each step."""

    windows: AccumulationWindows

    def __init__(self) -> None:
        self._with_gradient: weakref.WeakSet[Ref] = weakref.WeakSet()
        self._latest: Refs = NO_REFS
        self._before: dict[Ref, Any] = {}
        """Frozen parameters of the running step with a gradient -> their first values before the step."""

    def on_backward_ended(self, event: BackwardEnded) -> None:
        """Record the backward pass."""
        if event.reached_parameters is not self._latest:
            self._latest = event.reached_parameters
            self._with_gradient.update(event.reached_parameters)

    def on_step_started(self, event: StepStarted) -> None:
        """Copy some values of the frozen parameters."""
        live = event.live_parameters
        self._before = {
            ref: _first_values(live[ref]).clone()
            for ref in event.frozen
            if live[ref].grad is not None and live[ref].is_cpu
        }

    def on_step_taken(self, event: StepTaken) -> Evidence | None:
        """Return evidence at a step that changed a frozen parameter without a new gradient."""
        if not self._before:
            return None
        live, window = event.live_parameters, self.windows.ended_by(event.optimizer)
        before = {ref: values for ref, values in self._before.items() if ref in live}
        moved = {ref for ref, values in before.items() if bool((_first_values(live[ref]) != values).any())}
        names = sorted(ref.name for ref in moved - window.received if ref in self._with_gradient)
        if window.start is None or not names:
            return None
        return Evidence(
            message=f"This update changed {format_count(len(names), 'parameter')} with requires_grad=False that got no "
            f"gradient since the previous update: {first_few(names)}.",
            location=event.location,
        )


def _first_values(parameter: Any) -> Any:
    return parameter.detach().flatten()[:MAX_VALUES]


def inject(loop: TeachingLoop) -> None:
    """Inject this failure into the teaching loop."""
    loop.require(bool(loop.settings["hidden"]), "There is no hidden layer to freeze.", hidden=(16,))
    keeps_moving = loop.settings["optimizer"] in {"momentum", "nesterov", "adam", "adamw"}
    loop.require(keeps_moving, "This optimizer does not change parameters with a zero gradient.", optimizer="momentum")
    loop.replace(Piece.ZERO_GRAD, "zero_grad()", "zero_grad(set_to_none=False)")
    loop.pieces[Piece.TRAIN_MODE] += "\nif epoch == 1:\n    model.layers.requires_grad_(False)"


BAD = """
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
"""

FAILURE = Failure(
    code="OPT003",
    title="Frozen parameters keep changing",
    severity=Severity.ERROR,
    bad=BAD,
    good=changed(
        BAD,
        {
            "requires_grad_(False)": "requires_grad_(False)\n"
            "        for parameter in model[0].parameters():\n            parameter.grad = None"
        },
    ),
    fix="Set .grad to None for every parameter that you freeze.",
    detector=Detector,
    inject=inject,
)
