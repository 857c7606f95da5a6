"""Samples that the model is trained on are also in the held-out set.

What you see
    The validation score is better than the test score, or better than the model is in use. The validation loss never
    rises, however long you train. The score changes much from one random split to another.

Why it happens
    PyTorch does not know which samples are held out, so it raises no error. Samples end up in both sets when
    ``random_split`` is called twice, when slices overlap, or when the training loader gets the full dataset.

Fix
    Split once, and build both loaders from the parts of that split.

        train_set, held_out = random_split(data, [320, 80])
        train_loader = DataLoader(train_set, batch_size=32, shuffle=True)
        held_out_loader = DataLoader(held_out, batch_size=40)

When this is fine
    - You measure the training score on the training set, or on a part of it, on purpose.
    - You predict every sample at the end of training.
    - You use cross-validation, and each fold has a new model.
    - Some samples occur more than once in the original data.
    - You read one folder with two datasets, one with augmentation, and give each loader different indices.

How it is detected
    In a run, the sanitizer compares each evaluation loader with the loader that the model was last trained on. It
    reports three cases. (1) Both loaders use the same dataset, and some but not all of their indices are equal. (2) The
    training loader uses the full dataset, the evaluation loader uses a ``Subset`` of it in at least two passes, and the
    ``Subset`` with exactly the other samples exists but is not used. (3) Two tables have at least 20 rows of 8 or more
    numbers in common, but not all rows, and more than four times as many as are repeated within each table, so natural
    duplicates do not explain them. Datasets that read files are compared by index only. A program that evaluates on a
    mixture of seen and unseen samples on purpose is reported too, so this is a warning.

References
    torch.utils.data.random_split, https://docs.pytorch.org/docs/stable/data.html
    scikit-learn, "Common pitfalls: data leakage", https://scikit-learn.org/stable/common_pitfalls.html
    Kapoor and Narayanan, "Leakage and the reproducibility crisis in machine-learning-based science", Patterns 2023
"""

import weakref

from trueloop.core.findings import CodePosition, Evidence
from trueloop.failures.failure import BaseDetector, Failure, Severity, changed
from trueloop.tracing.evaluation_passes import HeldOutEvaluated
from trueloop.tracing.events import LoadersOverlap, LoaderStarted, Ref

MIN_EQUAL_ROWS = 20  # in two tables; a random split separates 20 pairs of natural duplicates with probability 2 ** -20
MIN_DUPLICATE_RATIO = 4  # number of rows that two tables share, per row that is repeated within one of them


class Detector(BaseDetector):
    """Compares each loader that is iterated without a backward pass with the loader of the latest training."""

    subscribes_to = (LoaderStarted, LoadersOverlap, HeldOutEvaluated)

    def __init__(self) -> None:
        self._made_at: weakref.WeakKeyDictionary[Ref, CodePosition | None] = weakref.WeakKeyDictionary()
        self._passes: weakref.WeakKeyDictionary[Ref, int] = weakref.WeakKeyDictionary()
        self._datasets: weakref.WeakSet[Ref] = weakref.WeakSet()
        self._overlaps: list[LoadersOverlap] = []
        self._reported: set[Ref] = set()

    def observe(self, event: LoaderStarted | LoadersOverlap | HeldOutEvaluated) -> Evidence | None:
        """Return evidence at the end of an evaluation pass over training samples."""
        if isinstance(event, LoaderStarted):
            if not event.epoch or event.loader not in self._made_at:
                self._made_at[event.loader] = event.made_at or event.location
                if event.dataset is not None:
                    self._datasets.add(event.dataset)
        elif isinstance(event, LoadersOverlap):
            self._overlaps = [*self._overlaps[-63:], event]
        else:
            return self._on_held_out_pass(event.loader, event.training_loader)
        return None

    def _on_held_out_pass(self, held_out: Ref, trainer: Ref) -> Evidence | None:
        if held_out in self._reported:
            return None
        self._passes[held_out] = self._passes.get(held_out, 0) + 1
        for overlap in self._overlaps:
            if {overlap.earlier, overlap.later} == {trainer, held_out}:
                return self._compare(overlap, trainer, held_out)
        return None

    def _compare(self, overlap: LoadersOverlap, trainer: Ref, held_out: Ref) -> Evidence | None:
        trained, measured = overlap.earlier_size, overlap.later_size
        if overlap.earlier is held_out:
            trained, measured = measured, trained
        in_part = overlap.shared < trained and overlap.shared < measured
        # A program whose two tables are equal measures on its training data on purpose.
        certain = in_part and overlap.matched_by == "index"
        certain |= (
            in_part and overlap.shared >= MIN_EQUAL_ROWS and overlap.shared > MIN_DUPLICATE_RATIO * overlap.duplicates
        )
        inside = overlap.remainder is not None and overlap.shared == measured < trained
        if inside and overlap.remainder not in self._datasets and self._passes[held_out] > 1:
            return self._evidence(
                f"The model is trained on all {trained} samples and evaluated on {measured} of them: the subset with "
                f"only the other {trained - measured} samples exists but is never used.",
                trainer,
                held_out,
                "the held-out loader",
            )
        if not certain:
            return None
        verb = "are also among" if overlap.matched_by == "index" else "have an exact copy among"
        return self._evidence(
            f"{overlap.shared} of the {measured} held-out samples {verb} the {trained} training samples.",
            held_out,
            trainer,
            "the training loader",
        )

    def _evidence(self, message: str, loader: Ref, other: Ref, label: str) -> Evidence:
        self._reported.update({loader, other})
        other_location = self._made_at.get(other)
        return Evidence(
            message=message,
            location=self._made_at.get(loader),
            related=((other_location, label),) if other_location is not None else (),
        )

    def inconclusive(self) -> str:
        """Return a reason where no held-out set was measured."""
        return "" if self._passes else "no loader was iterated without training"


BAD = """
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
"""

FAILURE = Failure(
    code="DAT001",
    title="Training and held-out samples overlap",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(
        BAD,
        {
            "train_set, _ = random_split(data, [320, 80])\n_, held_out = random_split(data, [320, 80])": (
                "train_set, held_out = random_split(data, [320, 80])"
            )
        },
    ),
    fix="Split the data once and build both loaders from the parts of that split.",
    detector=Detector,
)
