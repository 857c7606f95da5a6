"""The loss of an epoch is divided by the wrong number, so what is printed is not the mean loss.

What you see
    The printed loss is far too small, and changes with the batch size. Training and validation losses cannot be
    compared, and a learning curve begins below the loss of a constant answer.

Why it happens
    A loss with ``reduction="mean"`` is already divided by the batch size. The sum of these means has to be divided by
    the number of batches. ``len(loader.dataset)`` is the number of samples, and with a sampler not even that: it counts
    all samples of the dataset, also those that the loader never returns.

Fix
    Divide a sum over batches by the number of batches, and a sum over samples by the number of samples.

        total += loss.item()              # a sum over batches
        print(total / len(loader))
        total += loss.item() * len(x)     # a sum over samples
        print(total / samples)

When this is fine
    - The loss of a batch is a sum (``reduction="sum"``): the number of samples is right.
    - ``loss.item() * len(x)`` is added up, and the loader returns the full dataset.
    - ``drop_last=True`` leaves out a few samples.

How it is detected
    The sanitizer adds up the losses of each training epoch. At its end it looks for a variable of the loop that is
    equal to the sum of the batch means, or to the sum over samples, and for a division of this variable in the source
    code. It reports a divisor that is the number of samples for the first, and one that is the number of batches, or of
    more samples than were loaded, for the second.

References
    PyTorch Forums, "How to calculate the loss of an epoch", https://discuss.pytorch.org/t/on-running-loss-and-average-loss/107890
    torch.nn.CrossEntropyLoss and its reduction, https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html
"""

from dataclasses import dataclass

from trueloop.core.findings import Evidence, SourceLocation
from trueloop.failures.failure import BaseDetector, Failure, Severity, changed
from trueloop.tracing.events import Event


@dataclass(slots=True, kw_only=True, eq=False)
class EpochLossDivided(Event):
    """RARE. The sum of the losses of a training epoch is divided by some number, which is known at the epoch's end."""

    name: str
    """The variable with the sum."""
    divided_at: SourceLocation
    divisor: float
    divisor_text: str
    is_weighted: bool
    """Whether the variable is a sum over samples, not over batches."""
    batches: int
    samples: int
    total: float


class Detector(BaseDetector):
    """Checks by what the sum of an epoch's losses is divided."""

    def __init__(self) -> None:
        self._judged = False

    def on_epoch_loss_divided(self, event: EpochLossDivided) -> Evidence | None:
        """Return evidence of a divisor that does not belong to the sum."""
        self._judged = True
        right = event.samples if event.is_weighted else event.batches
        wrong = event.divisor == event.batches if event.is_weighted else event.divisor >= event.samples
        too_many = event.is_weighted and event.divisor > 1.1 * event.samples
        if not (wrong or too_many) or abs(event.divisor - right) < 0.1 * right:
            return None
        what = (
            f"the sum over {event.samples} samples" if event.is_weighted else f"the sum of {event.batches} batch means"
        )
        size = event.divisor / right
        factor = f"{size:.3g} times too small" if size > 1 else f"{1 / size:.3g} times too large"
        return Evidence(
            message=f"`{event.name}` is {what}, but it is divided by `{event.divisor_text}` = {event.divisor:g}: the "
            f"loss of the epoch is shown as {event.total / event.divisor:.4g}, and was {event.total / right:.4g} "
            f"({factor}).",
            location=event.divided_at,
            fix=f"Divide by the number of {'samples that were loaded' if event.is_weighted else 'batches'}, {right}.",
            dedup_key=event.name,
        )

    def inconclusive(self) -> str:
        """Return a reason if no such division was seen."""
        return "" if self._judged else "no division of the sum of an epoch's losses was seen"


BAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(240, 8)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(3):
    total = 0.0
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(epoch, total / len(loader.dataset))
"""

FAILURE = Failure(
    code="LOS015",
    title="The loss of an epoch is divided by the wrong number",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"len(loader.dataset)": "len(loader)"}),
    fix="Divide a sum of batch means by the number of batches, and a sum over samples by the number of samples.",
    detector=Detector,
)
