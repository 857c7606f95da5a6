"""A sum over batches is divided by the number of samples, or a sum over samples by the number of batches.

What you see
    The printed loss is far too small, and changes with the batch size; an accuracy is 3,200 %, or cannot exceed the
    batch size. Training and validation losses cannot be compared.

Why it happens
    A loss with ``reduction="mean"`` is already divided by the batch size, so the sum of these means has one term per
    batch. A count of correct predictions has one term per sample. ``len(loader)`` is the number of batches, and
    ``len(loader.dataset)`` the number of samples, also of those that a sampler never draws. ``len(loader) *
    batch_size`` is larger than the number of samples if the last batch is smaller.

Fix
    Divide each total by the number of its terms:

        loss = total / len(loader)  # total += loss.item()
        loss = total / samples  # total += loss.item() * len(x)
        accuracy = correct / samples  # correct += (predicted == labels).sum().item()

When this is fine
    - The loss of a batch is a sum (``reduction="sum"``): the number of samples is right.
    - Every batch has one sample.
    - You divide by the batch size as well, ``correct / len(loader) / batch_size``, and all batches have this size.
    - Two names are one loader, or two loaders read one dataset.
    - ``drop_last=True`` leaves out a few samples.

How it is detected
    In a run, the sanitizer adds up the losses of each training epoch. At its end it looks for a variable of the loop
    that is equal to the sum of the batch means, or to the sum over samples, and for a division of this variable in the
    source code. It reports a divisor that is the number of samples for the first, and one that is the number of
    batches, or of more samples than were loaded, for the second.

    The linter reports a variable to which a loop over a loader, or over batches that are cut by hand, adds a number of
    correct predictions, a loss, or a loss times a batch size, and that is divided by a number of something else: the
    length of the loader, a counter of batches or samples, the number of rows, the length of a list, or the length of
    the dataset. It also reports the length of a dataset of which a sampler draws only a part. It reports the length of
    a loader or dataset of another split, by its name, too: ``val_loss / len(train_loader)``. And it reports a count of
    right predictions, or a sum over samples, that is divided by the number of batches times the batch size, unless a
    loader drops its last batch or all numbers in the file are multiples. It reports the counter of ``enumerate`` after
    its loop, which is the number of batches less one, and the mean loss of a batch that is divided by the batch size.
    And it reports a sum of batch means that is printed or logged by a function that divides the sum of another loop.

References
    PyTorch Forums, "On running loss and average loss", https://discuss.pytorch.org/t/on-running-loss-and-average-loss/107890
    Project-MONAI/tutorials, a validation loss divided by ``len(train_loader)``,
    https://github.com/Project-MONAI/tutorials/blob/main/generation/classifier_free_guidance/2d_ddpm_classifier_free_guidance_tutorial.ipynb
    PyTorch quickstart, which divides by both, https://docs.pytorch.org/tutorials/beginner/basics/quickstart_tutorial.html
"""

from dataclasses import dataclass

from trueloop.core.findings import Evidence, SourceLocation
from trueloop.failures.failure import BaseDetector, Failure, Severity, changed
from trueloop.failures.loss.epoch_mean_wrong.wrong_counts import RULE
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
    code="LOS012",
    title="A total is divided by the wrong count",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"len(loader.dataset)": "len(loader)"}),
    fix="Divide a sum of batch means by the number of batches, and a sum over samples by the number of samples.",
    rule=RULE,
    detector=Detector,
)
