"""A loss whose targets must be 1 and -1, such as CosineEmbeddingLoss, gets 0 and 1.

What you see
    Similar pairs move together, but different pairs are never pushed apart: in the end all embeddings are alike. The
    loss falls to zero, and the retrieval or verification score stays poor.

Why it happens
    ``CosineEmbeddingLoss`` and ``HingeEmbeddingLoss`` add up a term for targets of 1 and a term for targets of -1. A
    target of 0 is neither, so its pair contributes nothing, or a constant. ``MarginRankingLoss`` and ``SoftMarginLoss``
    multiply by the target, and the gradient of such a pair is 0. None of them checks the targets. The same is true of a
    hinge loss that is written by hand, ``clamp(1 - y * output, min=0)``.

Fix
    Convert labels of 0 and 1 to -1 and 1.

        loss = nn.functional.cosine_embedding_loss(first, second, 2 * labels - 1)

When this is fine
    - The targets are -1 and 1.
    - A target of 0 marks ties, or pairs to ignore, among targets of -1 and 1.
    - All targets are 1, because the arguments are ordered.

How it is detected
    The sanitizer reads the targets of ``cosine_embedding_loss``, ``hinge_embedding_loss``, ``margin_ranking_loss`` and
    ``soft_margin_loss``. It reports a line where targets of 0 occur, but none of -1, in 16 or more targets. The linter
    reports such a loss, or a hinge loss that is written by hand, if its targets are the result of a comparison or are
    drawn from 0 and 1.

References
    torch.nn.CosineEmbeddingLoss, https://docs.pytorch.org/docs/stable/generated/torch.nn.CosineEmbeddingLoss.html
    torch.nn.HingeEmbeddingLoss, https://docs.pytorch.org/docs/stable/generated/torch.nn.HingeEmbeddingLoss.html
    torch.nn.MarginRankingLoss, https://docs.pytorch.org/docs/stable/generated/torch.nn.MarginRankingLoss.html
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from trueloop.core.findings import CodePosition, Evidence
from trueloop.core.formatting import format_percent
from trueloop.failures.failure import BaseDetector, Failure, Severity, changed
from trueloop.failures.loss.signs_given_as_binary.labels_in_source import RULE
from trueloop.tracing.events import Event, WatchEnded

MIN_TARGETS: Final = 16
MAX_LINES: Final = 16


@dataclass(slots=True, kw_only=True, eq=False)
class SignTargetsRead(Event):
    """A loss was called whose targets must be 1 and -1."""

    function: str
    counts: tuple[int, int, int]
    """Number of targets below 0, of 0, and above 0."""


@dataclass(slots=True)
class _Targets:
    function: str
    update: int
    negative: int = 0
    zero: int = 0
    positive: int = 0


class Detector(BaseDetector):
    """Counts the targets of each line, and judges them at the end of the program."""

    def __init__(self) -> None:
        self._lines = dict[CodePosition | None, _Targets]()

    def on_sign_targets_read(self, event: SignTargetsRead) -> None:
        """Count the targets of one call."""
        if event.location not in self._lines and len(self._lines) >= MAX_LINES:
            return
        targets = self._lines.setdefault(event.location, _Targets(event.function, event.update))
        negative, zero, positive = event.counts
        targets.negative += negative
        targets.zero += zero
        targets.positive += positive

    def on_watch_ended(self, event: WatchEnded) -> Iterator[Evidence]:
        """Return evidence for each line with targets of 0 and none of -1."""
        for location, each in self._lines.items():
            total = each.zero + each.positive
            if each.zero and not each.negative and total >= MIN_TARGETS:
                yield Evidence(
                    message=f"`{each.function}` expects targets of 1 and -1, but {format_percent(each.zero / total)} "
                    f"of {total} targets are 0 and none is -1: these pairs have no gradient.",
                    location=location,
                    first_update=each.update,
                )

    def inconclusive(self) -> str:
        """Return a reason if no such loss was called."""
        return "" if self._lines else "no loss whose targets are 1 and -1 was called"


BAD = """
import torch
from torch import nn

torch.manual_seed(0)
first, second = torch.randn(256, 8), torch.randn(256, 8)
labels = (first[:, 0] * second[:, 0] > 0).float()
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
criterion = nn.CosineEmbeddingLoss(margin=0.2)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(4):
    for rows in torch.randperm(256).split(32):
        optimizer.zero_grad()
        loss = criterion(model(first[rows]), model(second[rows]), labels[rows])
        loss.backward()
        optimizer.step()
"""

FAILURE = Failure(
    code="LOS016",
    title="Targets of 1 and -1 are given as 1 and 0",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"labels[rows])": "2 * labels[rows] - 1)"}),
    fix="Convert the labels to -1 and 1: 2 * labels - 1.",
    rule=RULE,
    detector=Detector,
)
