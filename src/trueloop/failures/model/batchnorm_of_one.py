"""BatchNorm in train mode computes its statistics from a single sample.

What you see
    The loss jumps at the end of an epoch, where the last batch has one sample. The running statistics are pulled
    towards that sample, so the model is worse in eval mode than in train mode.

Why it happens
    PyTorch raises an error only if a channel has a single value. One image has as many values per channel as pixels,
    so a mean and a variance exist, but they describe the image and not the data.

Fix
    Drop the incomplete last batch of the training loader:

        train = DataLoader(dataset, batch_size=16, shuffle=True, drop_last=True)

    If batches are always small, use ``nn.GroupNorm``.

When this is fine
    - Training with a batch size of 1 throughout, as pix2pix does, is instance normalisation on purpose.

How it is detected
    ``trueloop run`` reports a layer in train mode that gets one sample after a larger batch. It is a note, because one
    small batch in an epoch rarely does harm.

References
    torch.nn.BatchNorm2d, https://docs.pytorch.org/docs/stable/generated/torch.nn.BatchNorm2d.html
    Wu and Johnson, "Rethinking 'Batch' in BatchNorm", 2021, https://arxiv.org/abs/2105.07576
    Wu and He, "Group Normalization", 2018, https://arxiv.org/abs/1803.08494
"""

from trueloop.core.findings import Evidence
from trueloop.failures.failure import BaseDetector, Failure, Severity
from trueloop.tracing.events import BatchNormSingleSample, BatchNormTrained


class Detector(BaseDetector):
    """Reports each layer that computed its statistics from one sample."""

    subscribes_to = (BatchNormSingleSample, BatchNormTrained)

    def observe(self, event: BatchNormSingleSample | BatchNormTrained) -> Evidence | None:
        """Return evidence for each layer."""
        if isinstance(event, BatchNormTrained):
            return None
        return Evidence(
            message=f"A {event.module.kind} in {event.model.name} computed its statistics from one sample "
            f"({event.values_per_channel} values per channel), after a batch of {event.previous_batch_size} samples.",
            location=event.location,
        )


SCRIPT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(65, 3, 8, 8)
y = x.mean((1, 2, 3)).unsqueeze(1)
train = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True{drop_last})
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(2):
    for inputs, targets in train:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
"""

FAILURE = Failure(
    code="MDL003",
    title="BatchNorm gets a batch of one sample",
    severity=Severity.NOTE,
    bad=SCRIPT.replace("{drop_last}", ""),
    good=SCRIPT.replace("{drop_last}", ", drop_last=True"),
    fix="Pass drop_last=True to the training loader, or use nn.GroupNorm.",
    detector=Detector,
)
