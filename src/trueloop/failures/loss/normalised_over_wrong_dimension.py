"""Log-probabilities add up to one over the samples or the positions, not over the classes.

What you see
    The loss falls and accuracy stays poor, or depends on the batch size. The model learns which sample of the batch
    is most like a class, not which class a sample is of; one sample alone is of every class with probability one.

Why it happens
    ``log_softmax(x, dim=0)`` of [batch, classes] has the shape that ``nll_loss`` wants, and so has ``dim=-1`` of
    [batch, classes, positions]. Without ``dim`` torch takes 0 for one, three and more than four dimensions, and warns.

Fix
    ``log_softmax(x, dim=1)``, or ``dim=-1`` where the classes come last; or ``cross_entropy`` on the logits.

When this is fine
    A single sample without a batch, [classes], where 0 is right; ``cross_entropy``, which knows its dimension itself;
    contrastive losses over the columns of a matrix of similarities, which transpose it; attention over positions
    inside a model; log-probabilities that are reshaped to [tokens, classes] before the loss. Reported is ``nll_loss``
    on what comes from a ``log_softmax``, with views between them at most, over another dimension than the classes. How
    many dimensions a tensor has does not show in a text, so it is found at run time only.

References
    fxia22/pointnet.pytorch#27, "Dim0 means the dimension of batch. However, the log_softmax should be applied along
    the channels", https://github.com/fxia22/pointnet.pytorch/issues/27
    pytorch/pytorch#37399, "debugging my model for hours until I realized I'm doing softmax along the wrong dimension",
    https://github.com/pytorch/pytorch/pull/37399
    MicrosoftDocs/pytorchfundamentals#21, https://github.com/MicrosoftDocs/pytorchfundamentals/pull/21
    torch.nn.LogSoftmax, https://docs.pytorch.org/docs/stable/generated/torch.nn.LogSoftmax.html
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from trueloop.core.findings import Evidence
from trueloop.failures import failure
from trueloop.failures.failure import Failure, Severity
from trueloop.failures.teaching_script import Piece, TeachingLoop
from trueloop.tracing.events import Event, LossesSeen


class Detector(failure.Detector):
    """Looks at what each log-softmax before a loss was over."""

    subscribes_to: ClassVar[tuple[type[Event], ...]] = (LossesSeen,)

    def __init__(self) -> None:
        self._looked = False

    def observe(self, event: LossesSeen) -> Iterator[Evidence]:
        """Return evidence for each loss whose log-softmax is not over the classes."""
        for loss in event.losses:
            self._looked |= loss.kind == "cross_entropy"
            if loss.normalised is None or not loss.shape:
                continue
            dimension, size = loss.normalised
            what = "samples of the batch" if dimension == 0 else "values"
            yield Evidence(
                message=f"The log_softmax before this loss is over dimension {dimension}, {size} {what}; the classes "
                f"are the {loss.shape[1]} of dimension 1.",
                location=loss.place or event.place,
                related=((event.place, "its backward"),) if loss.place and event.place else (),
            )

    def inconclusive(self) -> str:
        """Say so where no log-softmax stood before a loss."""
        return "" if self._looked else "no log_softmax before a loss of torch's own was found in a graph"


def inject(loop: TeachingLoop) -> None:
    """Break the teaching loop this way."""
    loop.replace(Piece.CRITERION, "nn.CrossEntropyLoss()", "nn.NLLLoss()")
    loop.replace(Piece.FORWARD, "model(inputs)", "model(inputs).log_softmax(0)")
    loop.replace(Piece.EVALUATION, "model(inputs)", "model(inputs).log_softmax(0)")


FAILURE = Failure(
    code="LOS007",
    title="Log-probabilities are normalised over the wrong dimension",
    severity=Severity.ERROR,
    doc=__doc__ or "",
    bad="""
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
inputs = torch.randn(200, 6)
labels = inputs[:, :4].argmax(1)
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(20):
    optimizer.zero_grad()
    loss = F.nll_loss(F.log_softmax(model(inputs), dim=0), labels)
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.3f}, accuracy {(model(inputs).argmax(1) == labels).float().mean():.2f}")
""",
    good="""
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
inputs = torch.randn(200, 6)
labels = inputs[:, :4].argmax(1)
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(20):
    optimizer.zero_grad()
    loss = F.nll_loss(F.log_softmax(model(inputs), dim=1), labels)
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.3f}, accuracy {(model(inputs).argmax(1) == labels).float().mean():.2f}")
""",
    fix="Normalise over the classes: log_softmax(x, dim=1), or cross_entropy on the logits.",
    detector=Detector,
    inject=inject,
)
