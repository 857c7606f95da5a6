"""The last operation of the model cannot give the targets, so the loss stays high.

What you see
    The loss falls a little and then stays constant. All predictions lie at the end of a range: 1, -1 or 0. Or the loss
    never moves at all.

Why it happens
    A sigmoid gives values between 0 and 1, a tanh between -1 and 1, a ReLU none below 0, and a softmax over a single
    value always gives 1. The values of a softmax sum to 1, so it cannot give several labels of a sample a probability
    near 1. A regression loss accepts targets outside of that range, and its gradient vanishes where the
    activation is saturated.

Fix
    Leave the last activation out of a regression, or scale the targets to its range.

        self.head = nn.Linear(64, 1)  # not nn.Sequential(nn.Linear(64, 1), nn.Sigmoid())

    With several labels per sample, use a sigmoid, best within ``nn.BCEWithLogitsLoss``. With one output for two
    classes, use ``nn.BCEWithLogitsLoss``; ``nn.CrossEntropyLoss`` needs one output for each
    class.

When this is fine
    - The targets lie in the range, or the output is scaled after the activation.
    - Few targets lie outside, such as measurements with noise.

How it is detected
    In a run, the sanitizer reads the last operation before a squared, absolute or Huber loss from the graph. It reports
    it if 20 % or more of the targets are out of its range, and the loss of 30 or more updates did not fall clearly
    below that of the best constant prediction, or if 40 % or more are out of its range by a quarter of their standard
    deviation. It reports a softmax over one value, a cross-entropy over one class, and a softmax over classes if 20 %
    or more of the samples have several of them. It does not read targets on a GPU.

    The linter reports such a loss between the output of a sigmoid, tanh or ReLU and values that the program divides by
    their standard deviation, or the input of the model, if images get a ``Normalize`` beyond the range.

References
    torch.nn.Sigmoid, https://docs.pytorch.org/docs/stable/generated/torch.nn.Sigmoid.html
    torch.nn.CrossEntropyLoss, https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from trueloop.core.findings import CodePosition, Evidence
from trueloop.core.formatting import format_float, format_percent
from trueloop.failures.failure import BaseDetector, Failure, Severity, changed
from trueloop.failures.learning.target_out_of_reach.standardised_targets import RULE
from trueloop.failures.teaching_script import Piece, replacement_injector
from trueloop.tracing.events import LossGraphRead, MeasuredLoss, WatchEnded

if TYPE_CHECKING:
    from torch import Tensor

    from trueloop.tracing.trackers.learning_progress import LearningProgress

RANGES = {"Sigmoid": (0.0, 1.0), "Tanh": (-1.0, 1.0), "Relu": (0.0, math.inf), "Softmax": (0.0, 1.0)}
MARGIN = 0.01  # by which a target may be outside, from noise or label smoothing
MIN_SHARE = 0.2  # of the targets; outliers are fewer
MIN_FAR_SHARE = 0.4  # of the targets that are so far outside that the run cannot be right even if it learns
FAR = 0.25  # standard deviations of the targets by which such a target is outside
MIN_READ = 4  # losses


class _Reads:
    """The losses whose input one operation made."""

    def __init__(self) -> None:
        self.losses, self.outside, self.low, self.high = 0, 0.0, math.inf, -math.inf
        self.far = 0.0
        self.several = 0.0
        """Sum over the losses of the share of samples with several classes, after a softmax."""
        self.location: CodePosition | None = None


class Detector(BaseDetector):
    """Compares targets with the range of the operation that makes the answers."""

    progress: LearningProgress

    def __init__(self) -> None:
        self._reads: dict[str, _Reads] = {}

    def on_loss_graph_read(self, event: LossGraphRead) -> None:
        """Count the targets out of range; only in updates in which the layers are read too."""
        for loss in event.live_losses if event.live_nodes else ():
            operation = _single_value(loss) or loss.last_operation[0]
            several = _several(loss)
            is_class = loss.kind.startswith(("bce", "nll")) and operation in RANGES
            if not loss.targets.is_cpu or (is_class and several is None):
                continue
            reads = self._reads.setdefault(operation, _Reads())
            reads.losses, reads.location, reads.several = (
                reads.losses + 1,
                event.location,
                reads.several + (several or 0),
            )
            if operation in RANGES and not is_class:
                reads.outside += _share_outside(loss.targets, operation, MARGIN)
                reads.far += _share_outside(
                    loss.targets, operation, FAR * loss.targets.double().std(correction=0).item()
                )
                reads.low = min(reads.low, loss.targets.min().item())
                reads.high = max(reads.high, loss.targets.max().item())

    def on_watch_ended(self, event: WatchEnded) -> Evidence | None:
        """Return evidence if the run does not learn, always has a loss of 0, or cannot reach many targets."""
        failure = self.progress.failure()
        for operation, reads in self._reads.items():
            share, fix = reads.outside / reads.losses, ""
            if reads.losses < MIN_READ:
                continue
            if operation.endswith("one value") and len(self._reads) == 1:
                message = f"The loss is computed from a {operation}, which gives 1 whatever the weights are."
            elif reads.several / reads.losses >= MIN_SHARE:
                message = (
                    f"{format_percent(reads.several / reads.losses)} of the samples have several labels, but the model "
                    "ends in a softmax, whose values sum to 1: it can give only one label a probability above 0.5."
                )
                fix = "Leave the softmax out, and use nn.BCEWithLogitsLoss."
            elif (failure is not None and share >= MIN_SHARE) or reads.far / reads.losses >= MIN_FAR_SHARE:
                result = (
                    "No training can reach them." if failure is None else f"The run does not learn: {failure.losses}."
                )
                message = (
                    f"{format_percent(share)} of the targets, from {format_float(reads.low)} to "
                    f"{format_float(reads.high)}, are out of the range of the last operation, {operation.lower()}. "
                    f"{result}"
                )
            else:
                continue
            self.progress.cause_reported = True
            return Evidence(message=message, location=reads.location, first_update=0, fix=fix)
        return None

    def inconclusive(self) -> str:
        """Return the reason if it is not known whether the run learns."""
        return self.progress.unknown()


def _share_outside(targets: Tensor, operation: str, margin: float) -> float:
    """Return the share of targets that are out of the range of an operation by more than a margin."""
    low, high = RANGES[operation]
    return ((targets < low - margin) | (targets > high + margin)).double().mean().item()


def _several(loss: MeasuredLoss) -> float | None:
    """Return the share of samples with several classes, if a softmax over these classes made the answers."""
    name, size = loss.last_operation
    targets = loss.targets
    is_rows = (
        name == "Softmax" and targets.dim() == 2 and targets.shape == loss.answers.shape and targets.shape[1] == size
    )
    if not is_rows or size < 2 or not targets.is_cpu or not targets.is_floating_point():
        return None
    return ((targets > 0.5).sum(1) > 1).double().mean().item()


def _single_value(loss: MeasuredLoss) -> str:
    """Return the softmax in words if it normalises a single value, whose result is always 1."""
    name, size = loss.last_operation
    if name in ("Softmax", "LogSoftmax") and size == 1:
        return "softmax over one value"
    return ""


SIGMOID_OF_MASKS = """
def criterion(outputs, targets):
    masks = 255.0 * nn.functional.one_hot(targets, outputs.shape[1])  # 0 or 255, as in an image file
    return nn.functional.mse_loss(torch.sigmoid(outputs), masks)


""".lstrip()

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(512, 4)
y = 20 + 5 * x[:, :1]
y = (y - y.mean()) / y.std()
model = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 1), nn.Sigmoid())
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(200):
    rows = torch.randint(512, (64,))
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x[rows]), y[rows])
    loss.backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="LRN002",
    title="Last layer cannot produce the targets",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {", nn.Sigmoid())": ")"}),
    fix="Remove the last activation, or scale the targets to its range.",
    rule=RULE,
    detector=Detector,
    inject=replacement_injector(Piece.CRITERION, "criterion = nn.CrossEntropyLoss()", SIGMOID_OF_MASKS),
)
