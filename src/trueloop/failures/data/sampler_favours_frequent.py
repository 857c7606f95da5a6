"""The weights of a WeightedRandomSampler grow with the size of the classes, so frequent ones are drawn even more often.

What you see
    The batches consist almost entirely of the largest class, and the rare ones are predicted worse than without the
    sampler.

Why it happens
    Each sample gets the count, or the share, of its class as its weight, where the inverse was intended. Samples of a
    class with 90 % of the data are then drawn with a probability of 99 %.

Fix
    Use the inverse of the count as the weight.

        counts = torch.bincount(labels)
        sampler = WeightedRandomSampler(1.0 / counts[labels], num_samples=len(labels))

When this is fine
    - The weights fall as the classes get larger.
    - Samples have weights of their own, such as their quality or their age.
    - Two groups have weights that have nothing to do with their sizes.

How it is detected
    The sanitizer groups the samples of a WeightedRandomSampler by their weight. It reports weights that are
    proportional to the size of their group, in groups whose sizes differ by a factor of 1.5 or more.

References
    torch.utils.data.WeightedRandomSampler, https://docs.pytorch.org/docs/stable/data.html
"""

from typing import Final

from trueloop.core.findings import Evidence, SourceLocation
from trueloop.core.formatting import format_float, format_percent
from trueloop.failures.failure import BaseDetector, Failure, Severity, changed
from trueloop.tracing.events import LoaderStarted
from trueloop.tracing.source_calls import calls_in

MIN_SAMPLES: Final = 40
MAX_GROUPS: Final = 256
MIN_FACTOR: Final = 1.5
MAX_ERROR: Final = 0.02
"""Largest relative deviation of a weight from being proportional to the size of its group."""


class Detector(BaseDetector):
    """Compares the weights of samplers with the number of samples that have them."""

    def __init__(self) -> None:
        self._judged = False

    def on_loader_started(self, event: LoaderStarted) -> Evidence | None:
        """Return evidence in the first epoch of a loader whose sampler favours the largest classes."""
        weights = getattr(event.live_loader.sampler, "weights", None)
        if event.epoch or event.sampler != "WeightedRandomSampler" or weights is None or not weights.is_cpu:
            return None
        self._judged = True
        if len(weights) < MIN_SAMPLES:
            return None
        values, counts = (each.tolist() for each in weights.double().unique(return_counts=True))
        groups = sorted((count, value) for value, count in zip(values, counts, strict=True) if value > 0)
        if not 2 <= len(groups) <= MAX_GROUPS or not is_proportional(groups):
            return None
        (few, low), (many, high) = groups[0], groups[-1]
        total = sum(count * value for count, value in groups)
        return Evidence(
            message=f"The sampler's weights are proportional to the size of the classes: {many} samples have the "
            f"weight {format_float(high)}, and {few} have {format_float(low)}. The largest class, "
            f"{format_percent(many / sum(counts))} of the samples, makes up {format_percent(many * high / total)} of "
            "the batches.",
            location=sampler_line(event) or event.made_at or event.location,
        )

    def inconclusive(self) -> str:
        """Return a reason if there was no such sampler."""
        return "" if self._judged else "no WeightedRandomSampler was used"


def is_proportional(groups: list[tuple[int, float]]) -> bool:
    """Return True for weights that are proportional to the sizes of their groups, which are sorted."""
    (few, low), (many, _) = groups[0], groups[-1]
    unit = low / few
    return many >= MIN_FACTOR * few and all(abs(value / (unit * count) - 1) < MAX_ERROR for count, value in groups)


def sampler_line(event: LoaderStarted) -> SourceLocation | None:
    """Return the line that creates the sampler, in the file that creates the loader."""
    file = event.made_at.source_location.path if event.made_at else ""
    for call in calls_in(file, "WeightedRandomSampler"):
        if getattr(call.func, "attr", getattr(call.func, "id", "")) == "WeightedRandomSampler":
            return SourceLocation(file, call.lineno)
    return None


BAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

torch.manual_seed(0)
inputs = torch.randn(240, 8)
labels = (inputs[:, 0] > 1).long()
weights = torch.bincount(labels)[labels] / len(labels)
sampler = WeightedRandomSampler(weights, num_samples=240)
loader = DataLoader(TensorDataset(inputs, labels), batch_size=24, sampler=sampler)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
"""

FAILURE = Failure(
    code="DAT017",
    title="Sampler draws frequent classes even more often",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"torch.bincount(labels)[labels] / len(labels)": "1.0 / torch.bincount(labels)[labels]"}),
    fix="Weight each sample by the inverse of the size of its class: 1.0 / counts[labels].",
    detector=Detector,
)
