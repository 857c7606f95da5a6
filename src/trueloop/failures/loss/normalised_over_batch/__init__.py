"""Embeddings are normalised over the batch instead of each over its features.

What you see
    A contrastive loss falls, but similar samples are not near each other: a search for the nearest neighbour is hardly
    better than with an untrained network. Results change with the batch size.

Why it happens
    ``normalize(z, dim=0)`` and ``z / z.norm(dim=0)`` give each feature the length 1 over the samples of the batch, so
    the products of rows are no cosines. ``z / z.norm()`` divides all rows by one number, which grows with the batch:
    the products are near 0, and depend on the length of each row. ``cosine_similarity(a, b, dim=0)`` returns one number
    for each feature. All of them have a valid shape.

Fix
    Normalise over the features:

        z = F.normalize(z, dim=1)
        similarity = F.cosine_similarity(a, b, dim=1)

When this is fine
    - A single vector of shape [features], also a gradient that is divided by its norm.
    - Features are compared with each other, as the cross-correlation ``z1.T @ z2`` of Barlow Twins does.
    - The columns of a weight matrix of shape [features, classes].
    - A correlation over the samples, where the mean is subtracted first.

How it is detected
    In a run, the sanitizer looks for matrices whose columns have the length 1, in the graphs of losses. It reports a
    product of two of them that sums over the rest of a row instead, and a cosine similarity along the first of two
    dimensions without a mean that is subtracted, in two backward passes. The linter reports such a product, also with
    ``transpose``, ``matmul`` or ``einsum``. Both sides may also be divided by their norm over all dimensions, before or
    after the product, or be multiplied and summed with ``sum(1)``.

References
    torch.nn.functional.normalize,
    https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.normalize.html
    torch.nn.functional.cosine_similarity,
    https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.cosine_similarity.html
"""

from dataclasses import dataclass
from typing import Final

from trueloop.analysis.source_file import last_name
from trueloop.core.findings import Evidence, SourceLocation
from trueloop.failures.failure import BaseDetector, Failure, Severity, changed
from trueloop.failures.loss.normalised_over_batch.rule import RULE, is_first_dimension
from trueloop.tracing.events import Event
from trueloop.tracing.source_calls import calls_in

MIN_TIMES: Final = 2
_NAMES: Final = ("normalize", "cosine_similarity", "CosineSimilarity", "norm", "vector_norm")


@dataclass(slots=True, kw_only=True, eq=False)
class ColumnsNormalised(Event):
    """A loss compares rows of matrices whose columns were normalised."""

    operation: str
    """What compares them: "matmul", "cosine_similarity"."""
    shape: tuple[int, ...]


class Detector(BaseDetector):
    """Counts the backward passes from such losses."""

    def __init__(self) -> None:
        self._times = 0

    def on_columns_normalised(self, event: ColumnsNormalised) -> Evidence | None:
        """Return evidence at the second backward pass."""
        self._times += 1
        if self._times != MIN_TIMES:
            return None
        samples, features = event.shape
        what = "The product of embeddings" if event.operation == "matmul" else "A cosine similarity"
        return Evidence(
            message=f"{what} of shape [{samples}, {features}] normalises over the {samples} samples of the batch "
            f"(dim=0) instead of the {features} features.",
            location=_line_of(event) or event.location,
        )


def _line_of(event: ColumnsNormalised) -> SourceLocation | None:
    """Return the first call with ``dim=0`` in the file of the backward pass that normalises."""
    file = event.location.source_location.path if event.location else ""
    for call in calls_in(file, "dim"):
        if last_name(call.func) in _NAMES and is_first_dimension(call):
            return SourceLocation(file, call.lineno)
    return None


BAD = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
x = torch.randn(256, 12)
model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 16))
optimizer = torch.optim.Adam(model.parameters(), lr=0.003)

def embed(x):
    return F.normalize(model(x + 0.1 * torch.randn_like(x)), dim=0)

for epoch in range(3):
    for rows in torch.randperm(256).split(32):
        z1, z2 = embed(x[rows]), embed(x[rows])
        loss = F.cross_entropy(z1 @ z2.T / 0.1, torch.arange(32))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

FAILURE = Failure(
    code="LOS041",
    title="Embeddings are normalised over the batch",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"dim=0)": "dim=1)"}),
    fix="Normalise over the features: dim=1, or dim=-1.",
    rule=RULE,
    detector=Detector,
)
