"""A contrastive loss counts the similarity of each sample with itself among the negatives.

What you see
    The loss stays high and falls slowly, also with embeddings that separate well: it cannot reach zero. A lower
    temperature makes it worse instead of better.

Why it happens
    The similarities of a batch with itself, ``z @ z.T``, have the largest possible value on the diagonal. Without a
    mask it is the largest term in the sum over the negatives, and its gradient pushes nothing apart.

Fix
    Exclude the diagonal before the softmax.

        similarities = z @ z.T / temperature
        similarities.fill_diagonal_(float("-inf"))  # or masked_fill(torch.eye(len(z), dtype=torch.bool), -1e9)
        loss = nn.functional.cross_entropy(similarities, positives)

When this is fine
    - The diagonal is masked, removed or subtracted before the logarithm.
    - Two views are compared, ``z1 @ z2.T``, whose diagonal contains the positives.
    - The loss only spreads the samples, without positives, as an estimate of entropy does.

How it is detected
    The sanitizer reads the matrices of which a loss takes a softmax, or a logarithm of a sum of exponentials. It
    reports a symmetric matrix of 8 or more rows whose diagonal contains the maximum of every row, if the positives are
    other elements of it, in two backward passes. The linter follows the logits of a cross-entropy, or the sum of
    exponentials in the denominator of a loss over joined views, back to a product of embeddings with themselves:
    ``z @ z.T``, ``einsum``, or a similarity of ``z.unsqueeze(1)`` and ``z.unsqueeze(0)``. It reports the product if
    nothing on the way masks, selects or changes single elements, and the targets are not the diagonal.

References
    Chen et al., "A Simple Framework for Contrastive Learning of Visual Representations", 2020, arXiv:2002.05709
    torch.nn.functional.cross_entropy,
    https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.cross_entropy.html
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from trueloop.core.findings import CodePosition, Evidence, SourceLocation
from trueloop.core.formatting import format_percent
from trueloop.failures.failure import BaseDetector, Failure, Severity, changed
from trueloop.failures.loss.compared_with_itself.similarity_in_source import RULE
from trueloop.tracing.events import Event
from trueloop.tracing.source_calls import calls_in

MIN_TIMES: Final = 2


@dataclass(slots=True, kw_only=True, eq=False)
class SimilaritiesRead(Event):
    """A loss takes the logarithm of the sum of exponentials of a square matrix."""

    operation: str
    """The operation: "cross_entropy", "logsumexp", "exp"."""
    samples: int
    """Number of rows, if the matrix compares each sample with itself; 0 = it does not."""
    share: float
    """Mean share of the diagonal in the sum of a row."""
    called_at: CodePosition | None
    """The line of the loss; None = unknown."""


class Detector(BaseDetector):
    """Counts the backward passes from losses that compare samples with themselves."""

    def __init__(self) -> None:
        self._seen, self._times = False, 0

    def on_similarities_read(self, event: SimilaritiesRead) -> Evidence | None:
        """Return evidence at the second backward pass."""
        self._seen = True
        self._times += event.samples > 0
        if not event.samples or self._times != MIN_TIMES:
            return None
        return Evidence(
            message=f"The contrastive loss compares each of {event.samples} samples with itself too: the diagonal of "
            f"the similarities is the maximum of every row and makes up {format_percent(event.share)} of the sum over "
            "the negatives on average.",
            location=event.called_at or _line_of(event) or event.location,
        )

    def inconclusive(self) -> str:
        """Return a reason if no loss of similarities was seen."""
        return "" if self._seen else "no loss of a square matrix of similarities was seen"


def _line_of(event: SimilaritiesRead) -> SourceLocation | None:
    """Return the first call of the operation in the file of the backward pass."""
    file = event.location.source_location.path if event.location else ""
    for call in calls_in(file, event.operation):
        if getattr(call.func, "attr", getattr(call.func, "id", "")) == event.operation:
            return SourceLocation(file, call.lineno)
    return None


BAD = """
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
inputs = torch.randn(256, 8)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 16))
optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
positives = torch.arange(64).roll(32)
for step in range(20):
    x = inputs[torch.randint(256, (32,))]
    views = torch.cat([x + 0.1 * torch.randn(32, 8), x + 0.1 * torch.randn(32, 8)])
    z = F.normalize(model(views), dim=1)
    similarities = z @ z.T / 0.5
    loss = F.cross_entropy(similarities, positives)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="LOS017",
    title="Contrastive loss compares each sample with itself",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"z @ z.T / 0.5": "(z @ z.T / 0.5).masked_fill(torch.eye(64) == 1, -1e9)"}),
    fix="Exclude the diagonal before the softmax: similarities.fill_diagonal_(float('-inf')).",
    rule=RULE,
    detector=Detector,
)
