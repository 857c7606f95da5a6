"""Features are scaled to a range with the smallest and largest values of training and held-out samples together.

What you see
    The held-out score is better than the score in production. A series that grows never leaves the range that the model
    has been trained for, because the future maximum is already in the scale.

Why it happens
    ``(x - x.min()) / (x.max() - x.min())``, or ``MinMaxScaler().fit(x)``, runs before the split, so the extremes
    contain the held-out samples.

Fix
    Split first, compute the extremes on the training part, and apply them to both parts. Held-out values may then lie
    outside of 0 and 1.

        low, high = x[:cut].min(0), x[:cut].max(0)
        x = (x - low) / (high - low)

When this is fine
    - Both parts are scaled with the extremes of the training part.
    - The range is a constant of the measurement, such as 0 to 255, and the training samples reach both of its ends.
    - Values that are 0 or 1 by nature.

How it is detected
    The sanitizer records the smallest and largest input of a model in its training and in an evaluation on other
    samples. It reports data whose extremes are exactly 0 and 1, or -1 and 1, over both together, for each feature or
    for all features in common, if the training samples do not reach one of the two ends by 1 % or more.

References
    scikit-learn, "Common pitfalls: data leakage during pre-processing",
    https://scikit-learn.org/stable/common_pitfalls.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trueloop.core.findings import Evidence
from trueloop.failures.failure import BaseDetector, Failure, Severity, changed

if TYPE_CHECKING:
    from trueloop.tracing.trackers.input_statistics import HeldOutInputs

MAX_ERROR: Final = 1e-6
MIN_GAP: Final = 0.01  # share of the range that the training samples do not reach
RANGES: Final = ((0.0, 1.0), (-1.0, 1.0))

_Extremes = list[tuple[float, float, float, float]]


class Detector(BaseDetector):
    """Compares the range of the training inputs with that of all inputs."""

    def __init__(self) -> None:
        self._compared = False

    def on_held_out_inputs(self, event: HeldOutInputs) -> Evidence | None:
        """Return evidence of a range that only the held-out inputs fill."""
        from trueloop.tracing.trackers.input_statistics import scaling_line

        self._compared = True
        train, held_out = event.training, event.held_out
        if len(train.smallest) != len(held_out.smallest):
            return None
        each = list(zip(train.smallest, train.largest, held_out.smallest, held_out.largest, strict=True))
        each = [one for one in each if max(one) > min(one)]
        common = [(min(train.smallest), max(train.largest), min(held_out.smallest), max(held_out.largest))]
        found = _missed_end(common) or _missed_end(each)
        if found is None:
            return None
        reached, end = found
        return Evidence(
            message=f"The inputs of {event.model.name} are scaled to a range with the extremes of training and "
            f"held-out "
            f"samples together: the training samples reach {reached:.3g}, and the end of the range, {end:g}, is only "
            f"in "
            f"the {held_out.rows} held-out rows.",
            location=scaling_line(event),
        )

    def inconclusive(self) -> str:
        """Return a reason if no held-out inputs were seen."""
        return "" if self._compared else "no evaluation on other samples than the training ones was seen"


def _missed_end(features: _Extremes) -> tuple[float, float] | None:
    """Return how far the training samples reach, and the end that they miss, if all features fill a range exactly."""
    for low, high in RANGES:
        fills = [abs(min(a, c) - low) < MAX_ERROR and abs(max(b, d) - high) < MAX_ERROR for a, b, c, d in features]
        if features and all(fills):
            gap = MIN_GAP * (high - low)
            missed = [(b, high) for _, b, _, _ in features if high - b > gap]
            missed += [(a, low) for a, *_ in features if a - low > gap]
            return missed[0] if missed else None
    return None


BAD = """
import torch
from torch import nn

torch.manual_seed(0)
series = torch.arange(280) * 0.02 + torch.sin(torch.arange(280) / 8)
low, high = series.min(), series.max()
series = (series - low) / (high - low)
windows = series.unfold(0, 9, 1)
train, test = windows[:200], windows[220:]
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(20):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(train[:, :8]), train[:, 8:]).backward()
    optimizer.step()
with torch.no_grad():
    print(nn.functional.mse_loss(model(test[:, :8]), test[:, 8:]).item())
"""

FAILURE = Failure(
    code="DAT014",
    title="Features are scaled with the range of all samples",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"low, high = series.min(), series.max()": "low, high = series[:208].min(), series[:208].max()"}),
    fix="Compute the smallest and largest values on the training samples only.",
    detector=Detector,
)
