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
    samples, or steps of overlapping windows, that were not trained on and in which each feature has mean 0 and
    deviation 1 with an error of less than 2e-4: with the numbers of the training samples the mean would be off by about
    1 / sqrt(samples). The linter reports ``fit_transform`` of a scaler, encoder, imputer, vectorizer or projection on
    data that is called test or validation data, in a file that fits one on other data too, on ``x[n:]`` after the same
    object was fitted on ``x[:n]``, or on a parameter or in a loop that gets training data once and held-out data
    another time; ``(x - x.mean(0)) / x.std(0)``, or with the range, of both training and held-out data, by their names,
    also in a function that gets one after the other; and a batch of an evaluation loop that is standardised with its
    own mean over dimension 0, where the training data is not. A scaler that was read from a file must not be fitted
    again either.

References
    scikit-learn, "Common pitfalls", https://scikit-learn.org/stable/common_pitfalls.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trueloop.core.findings import Evidence
from trueloop.failures.data.scaled_separately.fitted_again import RULE
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
        from trueloop.tracing.trackers.input_statistics import MIN_ROWS, scaling_line

        if event.held_out.rows < MIN_ROWS:
            return None
        self._compared = True
        features = _standardised(event.held_out)
        training_mean = max(map(abs, event.training.mean), default=1.0)
        if features < MIN_FEATURES or training_mean > MAX_TRAINING_MEAN:
            return None
        rows = event.held_out.rows
        return Evidence(
            message=f"The {rows} held-out inputs of {event.model.name} are standardised with their own statistics: "
            f"each of {features} features has mean 0 and deviation 1 exactly. With those of the training samples, the "
            f"means would differ from 0 by about {rows**-0.5:.2g}.",
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


class StandardScaler:
    def fit(self, x):
        self.mean, self.deviation = x.mean(0), x.std(0)
        return self

    def transform(self, x):
        return (x - self.mean) / self.deviation

    def fit_transform(self, x):
        return self.fit(x).transform(x)


torch.manual_seed(0)
x = 3 + torch.rand(200, 8)
y = x.sum(1, keepdim=True)
scaler = StandardScaler()
x_train = scaler.fit_transform(x[:160])
x_test = x[160:]
x_test = scaler.fit_transform(x_test)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(8):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x_train), y[:160]).backward()
    optimizer.step()
with torch.no_grad():
    print(nn.functional.mse_loss(model(x_test), y[160:]))
"""

FAILURE = Failure(
    code="DAT013",
    title="Held-out samples are scaled with their own statistics",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"x_test = scaler.fit_transform(x_test)": "x_test = scaler.transform(x_test)"}),
    fix="Scale the held-out samples with the statistics of the training samples: `scaler.transform(test)`.",
    rule=RULE,
    detector=Detector,
)
