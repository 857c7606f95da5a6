"""BatchNorm in train mode computes its statistics from a single sample.

What you see
    The loss jumps at the end of each epoch, where the last batch has only one sample. This sample also changes the
    running statistics, so the model may be worse in eval mode than in train mode.

Why it happens
    In train mode, BatchNorm normalises with the mean and variance of the batch. A single image has many pixels per
    channel, so PyTorch computes them without an error, but they describe this image only, not the data.

Fix
    Leave out the incomplete last batch of the training loader:

        train = DataLoader(dataset, batch_size=16, shuffle=True, drop_last=True)

    If batches are always small, use ``nn.GroupNorm``.

When this is fine
    - You train with batch size 1 on purpose, as pix2pix does.

How it is detected
    In a run, the sanitizer reports a BatchNorm layer in train mode that gets one sample after a larger batch. One such
    batch per epoch often does little harm, so this is a note.

References
    torch.nn.BatchNorm2d, https://docs.pytorch.org/docs/stable/generated/torch.nn.BatchNorm2d.html
    Wu and Johnson, "Rethinking 'Batch' in BatchNorm", 2021, https://arxiv.org/abs/2105.07576
    Wu and He, "Group Normalization", 2018, https://arxiv.org/abs/1803.08494
"""

import math
import weakref

from trueloop.core.findings import Evidence
from trueloop.failures.failure import BaseDetector, Failure, Severity
from trueloop.tracing.events import LayerCalled, Ref
from trueloop.tracing.trackers.batchnorm_layers import BatchNormTrained


class Detector(BaseDetector):
    """Reports each layer that computed its statistics from one sample after a batch of several."""

    def __init__(self) -> None:
        self._batch_sizes: weakref.WeakKeyDictionary[Ref, int] = weakref.WeakKeyDictionary()
        """BatchNorm layer -> size of its latest batch of more than one sample; 0 = the layer was reported."""

    def on_layer_called(self, event: LayerCalled) -> Evidence | None:
        """Return evidence for the first batch of one sample that follows a larger one."""
        # Recurrent layers emit the event too; only they have a batch_first.
        if event.batch_first is not None or self._batch_sizes.get(event.layer) == 0:
            return None
        samples, _, *positions = event.shape
        if samples != 1:
            self._batch_sizes[event.layer] = samples
            return None
        previous = self._batch_sizes.get(event.layer)
        if previous is None:
            return None
        self._batch_sizes[event.layer] = 0
        return Evidence(
            message=f"A {event.layer.kind} in {event.model.name} normalised a batch of one sample with the statistics "
            f"of this sample alone ({math.prod(positions)} values per channel); the previous batch had {previous} "
            "samples.",
            location=event.location,
        )

    def on_batch_norm_trained(self, event: BatchNormTrained) -> None:
        """Do nothing: the event only shows that the failure can be judged in this program."""


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
