"""Backward runs on a tensor that was made differentiable by decree and has nothing behind it.

Symptom
    The loss is printed, backward runs, the optimizer steps, and no weight ever changes.

Why nothing raises
    ``torch.tensor(value, requires_grad=True)`` and ``loss.requires_grad_()`` make a new leaf. Its backward fills its
    own ``.grad`` and is done. Without that call torch would have said that the loss has no graph.

Look-alikes
    ``parameter.backward(gradient)``, which puts a gradient into a parameter by hand, and a leaf that an optimizer holds
    (an image that is optimised) are not told. Certain when the root of a backward without a given gradient is a leaf
    that is no parameter and belongs to no optimizer: nothing else in the program can get a gradient from it.

Fix
    Keep the loss a tensor from the model to backward: no ``.item()``, ``.detach()``, ``.data``, ``torch.tensor(loss)``
    or NumPy on the way, no ``torch.no_grad()`` around the forward; then leave ``requires_grad_()`` out.

References
    PyTorch documentation "Autograd mechanics", https://docs.pytorch.org/docs/stable/notes/autograd.html
    torch.Tensor.requires_grad_, https://docs.pytorch.org/docs/stable/generated/torch.Tensor.requires_grad_.html
"""

from __future__ import annotations

from typing import Any, ClassVar

from trueloop.ground.events import BackwardStarted, Event, OptimizerCreated
from trueloop.ground.failure import Failure, Severity
from trueloop.ground.findings import Evidence
from trueloop.ground.teaching import TeachingLoop


class Detector:
    """Looks at the root of every backward, once there is an optimizer that would need its gradients."""

    moments: ClassVar[tuple[type[Event], ...]] = (OptimizerCreated, BackwardStarted)

    def __init__(self) -> None:
        self._trains = False
        self._seen = 0

    def observe(self, event: OptimizerCreated | BackwardStarted) -> Evidence | None:
        """Return evidence for a backward from a leaf."""
        if isinstance(event, OptimizerCreated):
            self._trains = True
            return None
        self._seen += 1
        if not event.leaf or not self._trains:
            return None
        return Evidence(
            message="This backward starts from a tensor that was made with requires_grad on and has no graph: it leads "
            "to no weight.",
            place=event.place,
        )

    def abstains(self) -> str:
        """Return a reason where no backward was seen."""
        return "" if self._seen else "no backward was seen"


def inject(loop: TeachingLoop) -> None:
    """Break the teaching loop this way."""

    def backward(loss: Any) -> None:
        loss.detach().requires_grad_().backward()

    loop.backward = backward


FAILURE = Failure(
    code="GRD009",
    title="The loss has no graph behind it",
    severity=Severity.ERROR,
    doc=__doc__ or "",
    bad="""
import torch
from torch import nn

x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(8):
    optimizer.zero_grad()
    with torch.no_grad():
        prediction = model(x)
    loss = nn.functional.mse_loss(prediction, y)
    loss.requires_grad_(True)
    loss.backward()
    optimizer.step()
""",
    good="""
import torch
from torch import nn

x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(8):
    optimizer.zero_grad()
    prediction = model(x)
    loss = nn.functional.mse_loss(prediction, y)
    loss.backward()
    optimizer.step()
""",
    fix="Compute the loss from the model's output without leaving the graph, and drop requires_grad_().",
    detector=Detector,
    inject=inject,
)
