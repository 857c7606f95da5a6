"""All labels that a classification loss gets are one and the same class.

What you see
    The loss falls to 0 within a few updates, and the accuracy is perfect, also for held-out samples with the same
    mistake. The model gives the same class for every input. A segmentation has no object in any image.

Why it happens
    The other classes are lost on the way: ``.long()`` cuts a mask that was scaled to 0 ... 1 down to 0, a mask is
    compared with a value that it does not have, a column of labels is read from the wrong place, or a filter leaves one
    folder. One class is a valid target, and no loss complains.

Fix
    Look at the labels of a few batches, and convert them before they are scaled:

        mask = (mask > 127).long()
        print(torch.bincount(mask.flatten()))

When this is fine
    - Labels of zeros for a contrastive loss: the first of several similarities is the right one.
    - Real and generated samples, or two domains, have a loss each: together they have two labels.
    - The classifier is frozen, and its input is changed until it is taken for one class.
    - All other classes are left out by ``ignore_index``.
    - A smoke test, or pretraining with one class on purpose.

How it is detected
    Only in a run: in 64 or more updates with 256 or more labels, all cross-entropies together had a single label, and
    an optimizer trains the linear layer or convolution that gives their scores. Labels of evaluations count too. Dense
    targets of a binary cross-entropy, such as masks, are judged if it is the only loss of that kind.

References
    torch.nn.CrossEntropyLoss, https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html
    torch.Tensor.long, https://docs.pytorch.org/docs/stable/generated/torch.Tensor.long.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trueloop.core.findings import Evidence
from trueloop.failures.failure import BaseDetector, Failure, Severity, changed
from trueloop.tracing.events import WatchEnded

if TYPE_CHECKING:
    from trueloop.tracing.trackers.label_values import Labels, LabelValues

MIN_UPDATES: Final = 64
MIN_LABELS: Final = 256
MASK_DIMENSIONS: Final = 3  # of a target with one label for each pixel


class Detector(BaseDetector):
    """Judges the labels of all losses at the end of the run."""

    labels: LabelValues

    def on_watch_ended(self, event: WatchEnded) -> list[Evidence]:
        """Return evidence if all labels are equal."""
        classes, masks = self.labels.classes, self.labels.binary
        found: list[Evidence] = []
        if classes.classes > 1:
            found += self._judge(classes, f"one of {classes.classes} classes")
        if len(masks.places) == 1 and masks.dimensions >= MASK_DIMENSIONS:
            found += self._judge(masks, "for a binary cross-entropy")
        return found

    def _judge(self, labels: Labels, what: str) -> list[Evidence]:
        is_judged = labels.updates >= MIN_UPDATES and labels.numbers >= MIN_LABELS and labels.is_of_layers
        value = labels.value() if is_judged and self.labels.last_layers_are_trained else None
        if value is None:
            return []
        message = f"All {labels.numbers} labels of {labels.updates} updates are {value:g}, {what}: the model learns "
        place = next(iter(labels.places))[0]
        return [Evidence(message=message + "to give this answer for every input.", location=place, first_update=0)]

    def inconclusive(self) -> str:
        """Return the reason if too few labels were read."""
        if max(self.labels.classes.updates, self.labels.binary.updates) >= MIN_UPDATES:
            return ""
        known = self.labels.classes.varies or self.labels.binary.varies
        return "" if known else f"fewer than {MIN_UPDATES} updates with a loss of classes"


BAD = """
import torch
from torch import nn

torch.manual_seed(0)
images = torch.randint(0, 256, (64, 3, 12, 12), dtype=torch.uint8)
masks = (images[:, 0] > 128).to(torch.uint8) * 200
model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 2, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(10):
    for rows in torch.randperm(64).split(8):
        inputs = images[rows].float() / 255
        targets = (masks[rows].float() / 255).long()
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
"""

FAILURE = Failure(
    code="DAT047",
    title="All labels are one class",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"(masks[rows].float() / 255).long()": "(masks[rows] > 127).long()"}),
    fix="Convert the labels so that all classes remain, and count them with torch.bincount.",
    detector=Detector,
)
