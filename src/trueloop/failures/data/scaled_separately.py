"""Held-out samples are standardised with their own mean and deviation instead of those of the training samples.

What you see
    The score on new data is worse than it should be, and changes with the set of samples that is evaluated together: a
    hot summer, standardised on its own, looks to the model like an average year.

Why it happens
    ``scaler.fit_transform(test)``, or ``(test - test.mean(0)) / test.std(0)``, computes a second mean and deviation.
    The same number then means something else in training and in evaluation, and differences between the two sets
    vanish.

Fix
    Fit once, on the training samples, and apply the same numbers to all others.

        train = scaler.fit_transform(train)
        test = scaler.transform(test)

When this is fine
    - Both parts are scaled with the mean and deviation of the training part.
    - Each sample is standardised on its own.
    - Each subject, site or sensor is standardised on its own, in training and in production.

How it is detected
    The sanitizer computes mean and deviation of each feature over all inputs of an evaluation. It reports 30 or more
    samples that were not trained on and in which each feature has mean 0 and deviation 1 with an error of less than
    2e-4: with the numbers of the training samples the mean would be off by about 1 / sqrt(samples).

References
    scikit-learn, "Common pitfalls", https://scikit-learn.org/stable/common_pitfalls.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trueloop.core.findings import Evidence
from trueloop.failures.failure import BaseDetector, Failure, Severity, changed

if TYPE_CHECKING:
    from trueloop.tracing.trackers.input_statistics import Columns, HeldOutInputs

MAX_ERROR: Final = 2e-4
MAX_TRAINING_MEAN: Final = 0.05
MIN_FEATURES: Final = 2


class Detector(BaseDetector):
    """Checks whether held-out inputs are standardised on their own."""

    def __init__(self) -> None:
        self._compared = False

    def on_held_out_inputs(self, event: HeldOutInputs) -> Evidence | None:
        """Return evidence of held-out inputs with mean 0 and deviation 1."""
        from trueloop.tracing.trackers.input_statistics import scaling_line

        self._compared = True
        features = _standardised(event.held_out)
        training_mean = max(map(abs, event.training.mean), default=1.0)
        if features < MIN_FEATURES or training_mean > MAX_TRAINING_MEAN:
            return None
        rows = event.held_out.rows
        return Evidence(
            message=f"The {rows} held-out inputs of {event.model.name} are standardised with their own statistics: "
            f"each of "
            f"{features} features has mean 0 and deviation 1 exactly. With those of the training samples, the means "
            f"would differ from 0 by about {rows**-0.5:.2g}.",
            location=scaling_line(event),
        )

    def inconclusive(self) -> str:
        """Return a reason if no held-out inputs were seen."""
        return "" if self._compared else "no evaluation on other samples than the training ones was seen"


def _standardised(columns: Columns) -> int:
    """Return the number of features if all that vary have mean 0 and deviation 1; otherwise 0."""
    varying = [
        (mean, deviation)
        for mean, deviation, low, high in zip(
            columns.mean, columns.deviation, columns.smallest, columns.largest, strict=True
        )
        if high > low
    ]
    exact = [
        abs(mean) < MAX_ERROR and abs(deviation * (columns.rows / (columns.rows - 1)) ** (k / 2) - 1) < MAX_ERROR
        for mean, deviation in varying
        for k in (0, 1)
    ]
    pairs = list(zip(exact[::2], exact[1::2], strict=True))
    return len(varying) if varying and all(any(pair) for pair in pairs) else 0


BAD = """
import torch
from torch import nn

torch.manual_seed(0)
train, test = torch.randn(200, 6) * 3 + 1, torch.randn(80, 6) * 2 + 4
y = train.sum(1, keepdim=True)
mean, deviation = train.mean(0), train.std(0)
test_mean, test_deviation = test.mean(0), test.std(0)
train, test = (train - mean) / deviation, (test - test_mean) / test_deviation
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(20):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(train), y).backward()
    optimizer.step()
with torch.no_grad():
    print(model(test).mean().item())
"""

FAILURE = Failure(
    code="DAT013",
    title="Held-out samples are scaled with their own statistics",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"(test - test_mean) / test_deviation": "(test - mean) / deviation"}),
    fix="Scale the held-out samples with the statistics of the training samples: `scaler.transform(test)`.",
    detector=Detector,
)
