"""A term is added to the loss, but it has no graph, so it has no effect on the training.

What you see
    One part of the loss does not fall, or falls only by chance. Its weight has no effect on the result.

Why it happens
    ``.item()``, ``.detach()``, ``.data``, NumPy, ``torch.tensor(loss)`` and ``torch.no_grad()`` return a value without
    a graph. Added to a loss it is a constant: it changes the number that you log, and no gradient.

Fix
    Compute the term with gradients, and use ``.item()`` only for the log.

        loss = task_loss + 0.1 * penalty.item()  # wrong: the penalty has no gradient
        loss = task_loss + 0.1 * penalty  # right

When this is fine
    - The term depends on no trained parameter, such as the entropy of a teacher's output.
    - A value and its own detached copy are added, as in ``x + (y - x).detach()`` or in a numerically stable softmax.
    - The term has gradients later, after a warm-up.
    - Several losses are added only for the log.

How it is detected
    In a run, if a loss is a sum with a term that has no graph, the sanitizer records the operations of a few updates.
    It reports a term that depends on trained parameters only through an operation that cuts the graph, and that is
    added to a loss in at least two recorded updates, up to the last one. Numbers that leave PyTorch are followed by the
    names of variables within one function. Operations of compiled programs are not recorded.

References
    PyTorch documentation "Autograd mechanics", https://docs.pytorch.org/docs/stable/notes/autograd.html
    PyTorch forum "Forward hook activations for loss computation",
    https://discuss.pytorch.org/t/forward-hook-activations-for-loss-computation/142903
"""

from trueloop.core.findings import Evidence
from trueloop.failures.failure import BaseDetector, Failure, Severity, changed
from trueloop.failures.teaching_script import Piece, line_injector
from trueloop.tracing.events import BackwardStarted, LossTracingEnded
from trueloop.tracing.trackers.tensor_origins import TensorOrigins

MIN_LOSSES = 2  # number of recorded losses of one line that had the term


class Detector(BaseDetector):
    """Reports the terms without a graph that the recorded losses of a line had up to the end."""

    origins: TensorOrigins

    def __init__(self) -> None:
        self._backwards = 0

    def on_backward_started(self, event: BackwardStarted) -> None:
        """Count the backward passes."""
        self._backwards += 1

    def on_loss_tracing_ended(self, event: LossTracingEnded) -> list[Evidence]:
        """Return evidence for each term, at the line that cuts its graph."""
        return [
            Evidence(
                message=f"`{term.cut.operation}` cuts the graph of a number that is added to the loss: this term has "
                "no gradient, so it does not change what the model learns.",
                location=term.cut.location,
                related=((term.location, "the term is added here"),) if term.location else (),
                first_update=0,
            )
            for term in self.origins.detached_terms(MIN_LOSSES)
        ]

    def inconclusive(self) -> str:
        """Return a reason if there was no backward pass."""
        return "" if self._backwards else "there was no backward pass"


BAD = """
import torch
from torch import nn

x = torch.randn(256, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(40):
    rows = torch.randint(256, (32,))
    optimizer.zero_grad()
    output = model(x[rows])
    penalty = output.abs().mean().item()
    loss = nn.functional.mse_loss(output, y[rows]) + 0.1 * penalty
    loss.backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="LOS009",
    title="A term of the loss has no graph",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"output.abs().mean().item()": "output.abs().mean()"}),
    fix="Compute the term with gradients: without .item(), .detach(), NumPy or torch.no_grad().",
    detector=Detector,
    inject=line_injector(Piece.LOSS, "loss = loss + 0.1 * outputs.square().mean().item()"),
)
