"""Batch normalisation in train mode takes its statistics from a single sample.

What you see
    The loss jumps at the end of an epoch, where the last batch has one sample left, and the running statistics are
    pulled towards that sample. In eval mode the model is worse than in train mode.

Why it happens
    torch refuses one value per channel only. A single image has as many values as pixels, so its mean and variance
    exist; they are those of the image, not of the data.

Fix
    Give the training loader ``drop_last=True``; where batches are always small, use group normalisation.

When this is fine
    Training with batches of one throughout, as pix2pix does, is instance normalisation on purpose, and is not told: it
    is told where the same layer had a larger batch before. A note, since one small batch in an epoch rarely does harm.

References
    torch.nn.BatchNorm2d, https://docs.pytorch.org/docs/stable/generated/torch.nn.BatchNorm2d.html
    Wu and Johnson, "Rethinking 'Batch' in BatchNorm", 2021, https://arxiv.org/abs/2105.07576
    Wu and He, "Group Normalization", 2018, https://arxiv.org/abs/1803.08494
"""

from __future__ import annotations

from typing import ClassVar

from trueloop.core.findings import Evidence
from trueloop.failures import failure
from trueloop.failures.failure import Failure, Severity
from trueloop.tracing.events import BatchNormOfOne, BatchNormTrained, Event


class Detector(failure.Detector):
    """Passes on what the source has seen."""

    subscribes_to: ClassVar[tuple[type[Event], ...]] = (BatchNormOfOne, BatchNormTrained)

    def observe(self, event: BatchNormOfOne | BatchNormTrained) -> Evidence | None:
        """Return evidence for each layer."""
        if isinstance(event, BatchNormTrained):
            return None
        return Evidence(
            message=f"A {event.module.kind} of {event.model.name} took its statistics from one sample "
            f"({event.values} values per channel), after batches of {event.before}.",
            place=event.place,
        )


FAILURE = Failure(
    code="MDL003",
    title="Batch normalisation sees one sample",
    severity=Severity.NOTE,
    doc=__doc__ or "",
    bad="""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(65, 3, 8, 8)
y = x.mean((1, 2, 3)).unsqueeze(1)
train = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(2):
    for inputs, targets in train:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
""",
    good="""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(65, 3, 8, 8)
y = x.mean((1, 2, 3)).unsqueeze(1)
train = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True, drop_last=True)
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(2):
    for inputs, targets in train:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
""",
    fix="Give the training loader drop_last=True, or use group normalisation.",
    detector=Detector,
)
