"""Samples that the model is trained on are also in the held-out set.

What you see
    The validation score is better than it should be, and better than the test score, or than what the model does in
    use. Longer training never looks like overfitting. Between two splits the score jumps.

Why it happens
    A held-out set is held out by agreement only. Two calls of ``random_split``, slices that overlap, or the whole
    dataset in the training loader instead of its training part give batches like any other.

Fix
    Split once, by one permutation of the indices, and build both loaders from the parts of that split.

When this is fine
    Measuring on the training set, or a part of it, on purpose; predictions for every sample there is at the end; other
    folds of a cross-validation with a fresh model; datasets that contain some samples twice by nature; two dataset
    objects over one folder, one with augmentation, split by disjoint indices. So only these are named, for the loader
    the model was trained by last: (1) training and held-out samples are indices into one dataset that overlap in part,
    while neither holds all of the other; (2) the training loader holds a whole dataset, the held-out loader a Subset
    of it, and the Subset with exactly the rest was made, and is used by nobody, in two sweeps; (3) two tables share at
    least 20 rows, of 8 numbers or more, but not all, and more than four times as many as repeat within each of them:
    a random split of data with natural repetitions leaves at least as many of them together as it separates. A
    program that measures on a random mixture of seen and unseen samples on purpose would be named too: hence a warning.
    Datasets that read files are compared by index only.

References
    Kapoor and Narayanan, "Leakage and the reproducibility crisis in machine-learning-based science", Patterns 2023
    torch.utils.data.random_split, https://docs.pytorch.org/docs/stable/data.html
    scikit-learn, "Common pitfalls: data leakage", https://scikit-learn.org/stable/common_pitfalls.html
"""

from __future__ import annotations

import weakref
from typing import ClassVar

from trueloop.core.findings import Evidence, CodePosition
from trueloop.failures import failure
from trueloop.failures.failure import Failure, Severity
from trueloop.tracing.evaluation_passes import HeldOutMeasured
from trueloop.tracing.events import (
    Event,
    LoadersShare,
    LoaderStarted,
    Ref,
)

FEWEST_ROWS = 20  # equal in two tables; 2 ** -20 is the chance that repetitions by nature all fall apart
APART = 4  # times as many as repeat within


class Detector(failure.Detector):
    """Knows which loader trained last, which ones are swept without a backward, and what the two share."""

    subscribes_to: ClassVar[tuple[type[Event], ...]] = (LoaderStarted, LoadersShare, HeldOutMeasured)

    def __init__(self) -> None:
        self._made_at: weakref.WeakKeyDictionary[Ref, CodePosition | None] = weakref.WeakKeyDictionary()
        self._sweeps: weakref.WeakKeyDictionary[Ref, int] = weakref.WeakKeyDictionary()
        self._datasets: weakref.WeakSet[Ref] = weakref.WeakSet()
        self._shares: list[LoadersShare] = []
        self._told: set[Ref] = set()

    def observe(self, event: LoaderStarted | LoadersShare | HeldOutMeasured) -> Evidence | None:
        """Return evidence at the end of a sweep over samples that were trained on."""
        if isinstance(event, LoaderStarted):
            if not event.epoch or event.loader not in self._made_at:
                self._made_at[event.loader] = event.made_at or event.place
                if event.dataset is not None:
                    self._datasets.add(event.dataset)
        elif isinstance(event, LoadersShare):
            self._shares = [*self._shares[-63:], event]
        else:
            return self._measured(event.loader, event.trainer)
        return None

    def _measured(self, held_out: Ref, trainer: Ref) -> Evidence | None:
        if held_out in self._told:
            return None
        self._sweeps[held_out] = self._sweeps.get(held_out, 0) + 1
        for share in self._shares:
            if {share.one, share.other} == {trainer, held_out}:
                return self._judge(share, trainer, held_out)
        return None

    def _judge(self, share: LoadersShare, trainer: Ref, held_out: Ref) -> Evidence | None:
        trained, held = share.of_one, share.of_other
        if share.one is held_out:
            trained, held = held, trained
        in_part = share.shared < trained and share.shared < held
        # By content a table may be the same one, or a copy, wholly: somebody measures on what was trained on.
        certain = in_part and share.how == "index"
        certain |= in_part and share.shared >= FEWEST_ROWS and share.shared > APART * share.repeated
        inside = share.rest is not None and share.shared == held < trained
        if inside and share.rest not in self._datasets and self._sweeps[held_out] > 1:
            return self._evidence(
                f"The model is trained on all {trained} samples, and measured on {held} of them; the other "
                f"{trained - held} were split off as a training set that nothing is trained on.",
                trainer, held_out, "the part that is measured",
            )  # fmt: skip
        if not certain:
            return None
        equal = "are" if share.how == "index" else "are equal to samples"
        return self._evidence(
            f"{share.shared} of the {held} samples the model is measured on {equal} among the {trained} it is "
            "trained on.",
            held_out, trainer, "trained on these",
        )  # fmt: skip

    def _evidence(self, message: str, at: Ref, other: Ref, words: str) -> Evidence:
        self._told.update({at, other})
        there = self._made_at.get(other)
        return Evidence(
            message=message, location=self._made_at.get(at), related=((there, words),) if there is not None else ()
        )

    def inconclusive(self) -> str:
        """Say so where no held-out set was ever measured."""
        return "" if self._sweeps else "no loader was swept without training"


FAILURE = Failure(
    code="DAT001",
    title="Held-out samples are trained on",
    severity=Severity.WARNING,
    doc=__doc__ or "",
    bad="""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

torch.manual_seed(0)
x = torch.randn(400, 8)
data = TensorDataset(x, x.sum(1, keepdim=True))
train_set, _ = random_split(data, [320, 80])
_, held_out = random_split(data, [320, 80])
train_loader = DataLoader(train_set, batch_size=32, shuffle=True)
held_out_loader = DataLoader(held_out, batch_size=40)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(2):
    model.train()
    for inputs, targets in train_loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        error = sum(nn.functional.mse_loss(model(a), b, reduction="sum").item() for a, b in held_out_loader)
    print(epoch, error / 80)
""",
    good="""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

torch.manual_seed(0)
x = torch.randn(400, 8)
data = TensorDataset(x, x.sum(1, keepdim=True))
train_set, held_out = random_split(data, [320, 80])
train_loader = DataLoader(train_set, batch_size=32, shuffle=True)
held_out_loader = DataLoader(held_out, batch_size=40)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(2):
    model.train()
    for inputs, targets in train_loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        error = sum(nn.functional.mse_loss(model(a), b, reduction="sum").item() for a, b in held_out_loader)
    print(epoch, error / 80)
""",
    fix="Split the data once, and build both loaders from the parts of that one split.",
    detector=Detector,
)
