"""Samples that the model is trained on are also in the held-out set.

What you see
    The validation score is better than the test score, or than the score in production. The validation loss never
    rises, however long you train. The score changes much from one random split to another.

Why it happens
    PyTorch does not know which samples are held out, so it raises no error. Samples end up in both sets when
    ``random_split`` is called twice, when slices overlap, when the training loader gets the full dataset, or when the
    folds of a cross-validation share one model, which has seen the held-out samples of the next fold. Windows of one
    recording that overlap have most values in common: split at random, they are in both sets as well.

Fix
    Split once, and build both loaders from the parts of that split.

        train_set, held_out = random_split(data, [320, 80])
        train_loader = DataLoader(train_set, batch_size=32, shuffle=True)
        held_out_loader = DataLoader(held_out, batch_size=40)

    Split series and recordings first, by time or by recording, and cut each part into windows afterwards.

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
    duplicates do not explain them.

    It also compares the values of the samples on the CPU that the model was called with, with or without a loader. It
    reports an evaluation on training samples if its variables are called held out (``val_loader``, ``x_test``,
    ``self.dev_set``) and not also training data, or if each of its batches mixes training samples with samples that are
    never trained on, and other training samples are left out. It reports an evaluation on windows of a series if 30 %
    of the windows, at least 16, overlap with training windows: nearly all of their runs of 4 to 8 steps are also in a
    training window, at another position.

    Datasets that read files are compared by index only. A program that evaluates on a mixture of seen and unseen
    samples on purpose is reported too, so this is a warning.

    The linter reports these cases. (1) A loader with the name of a held-out loader reads a dataset with the name of
    training data. (2) A training loader reads all samples, or ``part.dataset``, while another loader reads a part that
    ``random_split`` put aside. (3) Data is split at random twice, and one part of each split is used.
    (4) A score that is called validation or test score, by its variable or, if nothing reads the held-out loader, by a
    text or function, is computed over the training loader. (5) All folds of a cross-validation train one model, which
    the loop neither creates nor restores. (6) A score that is called held out is computed from training data only, such
    as ``out[train_mask]``, and nothing reads the held-out mask, indices or array. (7) The data is split at random again
    in every epoch, while the model stays the same. (8) ``random_split`` or ``train_test_split`` gets windows that begin
    one step after the other: of a dataset, a list, ``sliding_window_view`` or ``unfold``. (9) A dataset adds the files
    of the test folder in the branch for ``mode == "train"``. (10) Held-out rows are a sample, such as
    ``table.sample(frac=0.1)``, of data that a training set or a fit gets as a whole, and nothing drops them from it.

References
    torch.utils.data.random_split, https://docs.pytorch.org/docs/stable/data.html
    scikit-learn, "Common pitfalls: data leakage", https://scikit-learn.org/stable/common_pitfalls.html
    Kapoor and Narayanan, "Leakage and the reproducibility crisis in machine-learning-based science", Patterns 2023
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from trueloop.core.findings import CodePosition, Evidence
from trueloop.failures.data.held_out_seen_in_training.named_loaders import RULE
from trueloop.failures.failure import BaseDetector, Failure, Severity, changed
from trueloop.failures.teaching_script import Piece, TeachingLoop
from trueloop.tracing.events import BackwardEnded, Event, LoaderStarted, ModelCalled, Ref, TracingGap, WatchEnded
from trueloop.tracing.trackers.evaluation_passes import HeldOutEvaluated

if TYPE_CHECKING:
    from trueloop.failures.data.held_out_seen_in_training.named_evaluations import NamedEvaluation
    from trueloop.failures.data.held_out_seen_in_training.overlap import Overlap
    from trueloop.tracing.trackers.loader_samples import LoaderAdded

MIN_EQUAL_ROWS = 20  # in two tables; a random split separates 20 pairs of natural duplicates with probability 2 ** -20
MIN_DUPLICATE_RATIO = 4  # number of rows that two tables share, per row that is repeated within one of them


@dataclass(slots=True, kw_only=True, eq=False)
class SubsetCreated(Event):
    """RARE. The program created a Subset."""

    LIVE_FIELDS: ClassVar[tuple[str, ...]] = ("live_subset",)
    subset: Ref
    live_subset: Any
    """LIVE: the Subset."""


class Detector(BaseDetector):
    """Compares each loader that is iterated without a backward pass with the loader of the latest training."""

    def __init__(self) -> None:
        from trueloop.failures.data.held_out_seen_in_training.named_evaluations import NamedEvaluations

        self._named = NamedEvaluations()
        self._made_at: weakref.WeakKeyDictionary[Ref, CodePosition | None] = weakref.WeakKeyDictionary()
        self._passes: weakref.WeakKeyDictionary[Ref, int] = weakref.WeakKeyDictionary()
        self._datasets: weakref.WeakSet[Ref] = weakref.WeakSet()
        self._subsets: list[tuple[weakref.ref[Any], Ref]] = []
        self._overlaps: list[Overlap] = []
        self._reported: set[Ref] = set()

    def on_loader_started(self, event: LoaderStarted) -> None:
        """Record the start of the loader."""
        self._named.on_loader_started(event)
        if not event.epoch or event.loader not in self._made_at:
            self._made_at[event.loader] = event.made_at or event.location
            if event.dataset is not None:
                self._datasets.add(event.dataset)

    def on_model_called(self, event: ModelCalled) -> None:
        """Record the samples of the call."""
        self._named.on_model_called(event)

    def on_backward_ended(self, event: BackwardEnded) -> None:
        """Record the samples that were trained on."""
        self._named.on_backward_ended(event)

    def on_tracing_gap(self, event: TracingGap) -> None:
        """Discard calls that may have been trained on."""
        self._named.on_tracing_gap(event)

    def on_watch_ended(self, event: WatchEnded) -> Iterator[Evidence]:
        """Return evidence for evaluations on training samples that are called held out."""
        for each in self._named.find():
            if each.loader is None or each.loader not in self._reported:
                yield self._named_evidence(each)

    def _named_evidence(self, found: NamedEvaluation) -> Evidence:
        made_at = None if found.loader is None else self._made_at.get(found.loader)
        number = found.shared or found.windows
        count = f"All {found.samples}" if number == found.samples else f"{number} of the {found.samples}"
        samples = f"samples of `{found.name}`" if found.name else "samples"
        reason = "are also among its training samples: they have the same values."
        if found.windows:
            reason = (
                "overlap with training samples: all their values are in these, some steps earlier or later. Split the "
                "series or recordings first, then cut each part into windows."
            )
        return Evidence(
            message=f"{count} {samples}, on which the model was evaluated, {reason}",
            location=made_at or found.location,
            related=((found.location, "evaluated here"),) if made_at and found.location else (),
        )

    def on_subset_created(self, event: SubsetCreated) -> None:
        """Record the Subset."""
        existing = (each for each in self._subsets[-63:] if each[0]() is not None)
        self._subsets = [*existing, (weakref.ref(event.live_subset), event.subset)]

    def on_loader_added(self, event: LoaderAdded) -> None:
        """Record the samples that the loader shares with earlier ones."""
        from trueloop.failures.data.held_out_seen_in_training.overlap import find_overlap

        overlaps = (find_overlap(each, event.samples, self._subsets) for each in event.earlier)
        self._overlaps = [*self._overlaps[-63:], *filter(None, overlaps)]

    def on_held_out_evaluated(self, event: HeldOutEvaluated) -> Evidence | None:
        """Return evidence at the end of an evaluation pass over training samples."""
        return self._on_held_out_pass(event.loader, event.training_loader)

    def _on_held_out_pass(self, held_out: Ref, trainer: Ref) -> Evidence | None:
        if held_out in self._reported:
            return None
        self._passes[held_out] = self._passes.get(held_out, 0) + 1
        for overlap in self._overlaps:
            if {overlap.earlier, overlap.later} == {trainer, held_out}:
                return self._compare(overlap, trainer, held_out)
        return None

    def _compare(self, overlap: Overlap, trainer: Ref, held_out: Ref) -> Evidence | None:
        trained, measured = overlap.earlier_size, overlap.later_size
        if overlap.earlier is held_out:
            trained, measured = measured, trained
        partial = overlap.shared < trained and overlap.shared < measured
        # A program whose two tables are equal measures on its training data on purpose.
        is_certain = partial and overlap.matched_by == "index"
        is_certain |= (
            partial and overlap.shared >= MIN_EQUAL_ROWS and overlap.shared > MIN_DUPLICATE_RATIO * overlap.duplicates
        )
        is_subset = overlap.remainder is not None and overlap.shared == measured < trained
        if is_subset and overlap.remainder not in self._datasets and self._passes[held_out] > 1:
            return self._evidence(
                f"The model is trained on all {trained} samples and evaluated on {measured} of them: the subset with "
                f"only the other {trained - measured} samples exists but is never used.",
                trainer,
                held_out,
                "the held-out loader",
            )
        if not is_certain:
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
        """Return a reason if no held-out set was measured."""
        return "" if self._passes else "no loader was iterated without training"


def inject(loop: TeachingLoop) -> None:
    """Inject this failure into the teaching loop."""
    loop.replace(
        Piece.LOADERS,
        "train_set = TensorDataset(points[~held_out], labels[~held_out])\n"
        "held_out_set = TensorDataset(points[held_out], labels[held_out])",
        "train_set, _ = random_split(TensorDataset(points, labels), [0.8, 0.2])\n"
        "_, held_out_set = random_split(train_set.dataset, [0.8, 0.2])",
    )
    loop.imports.append("from torch.utils.data import random_split")


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
    rule=RULE,
    detector=Detector,
    inject=inject,
)
