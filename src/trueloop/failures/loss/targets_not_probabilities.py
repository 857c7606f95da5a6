"""A binary cross-entropy gets targets below 0 or above 1.

What you see
    The loss becomes negative and falls without end, and the outputs grow. Or the loss stays high, and the outputs are
    all 0 or 1.

Why it happens
    The binary cross-entropy is defined for targets between 0 and 1. ``-(y * log(p) + (1 - y) * log(1 - p))`` with a
    target of 2, or of -1, has no minimum. Pixels that were standardised, labels of -1 and 1, and masks of 0 and 255 are
    such targets. ``BCELoss`` raises an error for them, but ``BCEWithLogitsLoss`` does not.

Fix
    Use targets between 0 and 1, or a loss for any number, such as ``mse_loss``.

        image = image / 255  # do not standardise what the decoder shall reproduce
        labels = (labels + 1) / 2  # -1 and 1 become 0 and 1

When this is fine
    - Few targets are slightly outside, from rounding or interpolation.

How it is detected
    In a run, the sanitizer reads the targets of ``BCEWithLogitsLoss`` and its functional form on the CPU. It reports a
    loss of which 5 % or more of the targets are outside of -0.01 to 1.01, in 8 updates.

References
    torch.nn.BCEWithLogitsLoss, https://docs.pytorch.org/docs/stable/generated/torch.nn.BCEWithLogitsLoss.html
"""

from dataclasses import dataclass
from typing import Final

from trueloop.core.findings import CodePosition, Evidence
from trueloop.core.formatting import format_float, format_percent
from trueloop.failures.failure import BaseDetector, Failure, Severity, changed
from trueloop.tracing.events import LossGraphRead

LOW, HIGH = -0.01, 1.01
MIN_SHARE: Final = 0.05  # of the targets
MIN_LOSSES: Final = 8
MAX_LINES: Final = 64


@dataclass(slots=True)
class _Targets:
    """The targets of the losses of one line."""

    losses: int = 0
    outside: float = 0.0
    """Sum of the shares of targets that are no probabilities."""
    low: float = 0.0
    high: float = 1.0


class Detector(BaseDetector):
    """Reads the targets of each binary cross-entropy until there are enough."""

    def __init__(self) -> None:
        self._lines: dict[CodePosition | None, _Targets] = {}

    def on_loss_graph_read(self, event: LossGraphRead) -> Evidence | None:
        """Return evidence with the eighth loss."""
        for loss in event.live_losses:
            targets = loss.targets
            if loss.kind != "bce_with_logits" or not targets.is_cpu or not targets.numel():
                continue
            if event.location not in self._lines and len(self._lines) >= MAX_LINES:
                continue
            seen = self._lines.setdefault(event.location, _Targets())
            if seen.losses >= MIN_LOSSES:
                continue
            low, high = targets.min().item(), targets.max().item()
            seen.losses, seen.low, seen.high = seen.losses + 1, min(low, seen.low), max(high, seen.high)
            if low < LOW or high > HIGH:
                seen.outside += ((targets < LOW) | (targets > HIGH)).double().mean().item()
            if seen.losses == MIN_LOSSES and seen.outside >= MIN_SHARE * MIN_LOSSES:
                return Evidence(
                    message=f"{format_percent(seen.outside / MIN_LOSSES)} of the targets of this binary cross-entropy "
                    f"are below 0 or above 1 ({format_float(seen.low)} to {format_float(seen.high)}), so it has no "
                    "minimum.",
                    location=event.location,
                )
        return None

    def inconclusive(self) -> str:
        """Return a reason if no binary cross-entropy was read."""
        return "" if self._lines else "no binary cross-entropy with targets on the CPU was computed"


BAD = """
import torch
from torch import nn

torch.manual_seed(0)
images = torch.rand(400, 16)
images = (images - images.mean()) / images.std()
model = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 16))
criterion = nn.BCEWithLogitsLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
for step in range(40):
    batch = images[torch.randint(400, (64,))]
    loss = criterion(model(batch), batch)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
"""

FAILURE = Failure(
    code="LOS063",
    title="Targets of a binary cross-entropy are not between 0 and 1",
    severity=Severity.ERROR,
    bad=BAD,
    good=changed(BAD, {"images = (images - images.mean()) / images.std()\n": ""}),
    fix="Scale the targets to 0 to 1, or use another loss.",
    detector=Detector,
)
