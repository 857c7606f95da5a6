"""Features are scaled with the mean and deviation, or the range, of training and held-out samples together.

What you see
    The validation score is better than the score in production: hardly for many samples that are split at random, much
    for few or skewed samples, or where the data changes with time.

Why it happens
    ``(x - x.mean(0)) / x.std(0)`` runs before the split, so the mean and the deviation contain the held-out samples. In
    production, the mean of future samples is unknown.

Fix
    Split first, compute mean and deviation on the training part, and apply them to both parts.

        mean, deviation = x[train_rows].mean(0), x[train_rows].std(0)
        x = (x - mean) / deviation

When this is fine
    - Both parts are scaled with the mean and deviation of the training part.
    - You scale with fixed constants, such as those of ImageNet, or 1/255 where training samples have values 0 and 255.
    - The features have mean 0 by nature or by design (+1 and -1).
    - You scale a table of which no sample is held out.

How it is detected
    In a run, the sanitizer examines the table that the training loader and the held-out loader both read. It reports a
    table in which every feature, or the full table, has mean 0 and deviation 1 with an error below 1e-5, while the mean
    of the training samples alone differs from 0 by more than 1e-3; and, with or without loaders, inputs whose extremes
    over training and evaluation together are exactly 0 and 1, or -1 and 1, if the training samples miss one of the two
    ends by 1 % or more. Data that was published in this form is reported too, so this is a warning. Datasets that read
    files are not checked.

    The linter reports data that a function scales, projects (PCA), imputes or counts with statistics of all samples,
    and then splits with ``random_split``, ``train_test_split`` or at a position, and a dataset that scales all of its
    samples and is then split. It is a note for targets, and for data that is standardised without a scaler, unless a
    series is split at a time.

References
    scikit-learn, "Common pitfalls: data leakage during pre-processing",
    https://scikit-learn.org/stable/common_pitfalls.html
    Kaufman et al., "Leakage in data mining: formulation, detection, and avoidance", ACM TKDD 2012,
    https://doi.org/10.1145/2382577.2382579
    Hastie, Tibshirani and Friedman, "The Elements of Statistical Learning", 2009, section 7.10.2
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from trueloop.core.findings import CodePosition, Evidence
from trueloop.failures.data.statistics_leaked.joint_range import compare_ranges
from trueloop.failures.data.statistics_leaked.scaled_before_split import RULE
from trueloop.failures.failure import BaseDetector, Failure, Severity, changed
from trueloop.failures.teaching_script import Piece, replacement_injector
from trueloop.tracing.events import LoaderStarted, Ref
from trueloop.tracing.trackers.evaluation_passes import HeldOutEvaluated

if TYPE_CHECKING:
    from trueloop.failures.data.statistics_leaked.joint_scaling import JointScaling
    from trueloop.tracing.trackers.input_statistics import HeldOutInputs
    from trueloop.tracing.trackers.loader_samples import LoaderAdded

MIN_MEAN_OFFSET = 1e-3  # in standard deviations; a hundred times the rounding error


class Detector(BaseDetector):
    """Reports an evaluation pass over samples that were scaled together with the training samples."""

    def __init__(self) -> None:
        self._made_at: weakref.WeakKeyDictionary[Ref, CodePosition | None] = weakref.WeakKeyDictionary()
        self._scaled: list[JointScaling] = []
        self._reported: set[Ref] = set()
        self._compared = False

    def on_loader_started(self, event: LoaderStarted) -> None:
        """Record the start of the loader."""
        self._made_at[event.loader] = event.made_at or event.location

    def on_loader_added(self, event: LoaderAdded) -> None:
        """Record the loaders whose samples were scaled together with those of the new loader."""
        from trueloop.failures.data.statistics_leaked.joint_scaling import find_joint_scaling

        scaling = find_joint_scaling([*event.earlier, event.samples])
        if scaling is not None:
            self._scaled = [*self._scaled[-15:], scaling]

    def on_held_out_evaluated(self, event: HeldOutEvaluated) -> Evidence | None:
        """Return evidence at the end of the first such evaluation pass."""
        self._compared = True
        return self._compare(event.training_loader, event.loader)

    def on_held_out_inputs(self, event: HeldOutInputs) -> Evidence | None:
        """Return evidence of inputs that are scaled to a range which only the held-out samples fill."""
        self._compared = True
        return compare_ranges(event)

    def _compare(self, trainer: Ref, held_out: Ref) -> Evidence | None:
        for scaled in self._scaled:
            offset = scaled.mean_offsets.get(trainer, 0.0)
            if offset <= MIN_MEAN_OFFSET or held_out not in scaled.mean_offsets or trainer in self._reported:
                continue
            self._reported.add(trainer)
            held_out_location = self._made_at.get(held_out)
            return Evidence(
                message=f"Held-out samples were included in the scaling: all {scaled.samples} training and held-out "
                f"samples together have mean 0 and deviation 1, but the mean of the training samples is {offset:.2g} "
                "away from 0.",
                location=self._made_at.get(trainer),
                related=((held_out_location, "the held-out loader"),) if held_out_location is not None else (),
            )
        return None

    def inconclusive(self) -> str:
        """Return a reason if no held-out set was measured."""
        return "" if self._compared else "no evaluation on other samples than the training ones was seen"


BAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(400, 8) * torch.rand(8) * 9 + 5
y = x.sum(1, keepdim=True)
x = (x - x.mean(0)) / x.std(0)
train_loader = DataLoader(TensorDataset(x[:320], y[:320]), batch_size=32, shuffle=True)
held_out_loader = DataLoader(TensorDataset(x[320:], y[320:]), batch_size=40)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for inputs, targets in train_loader:
    optimizer.zero_grad()
    nn.functional.mse_loss(model(inputs), targets).backward()
    optimizer.step()
model.eval()
with torch.no_grad():
    print(sum(nn.functional.mse_loss(model(a), b, reduction="sum").item() for a, b in held_out_loader) / 80)
"""

FAILURE = Failure(
    code="DAT002",
    title="Feature scaling includes held-out samples",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"x = (x - x.mean(0)) / x.std(0)": "x = (x - x[:320].mean(0)) / x[:320].std(0)"}),
    fix="Split first, compute mean and deviation on the training part, and apply them to both parts.",
    rule=RULE,
    detector=Detector,
    inject=replacement_injector(
        Piece.DATA, "points[~held_out].mean(0), points[~held_out].std(0)", "points.mean(0), points.std(0)"
    ),
)
