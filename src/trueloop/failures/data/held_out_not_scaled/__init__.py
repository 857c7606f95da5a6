"""The training inputs are scaled, and those of the evaluation are not.

What you see
    The training loss is good and the held-out score is that of guessing, or moves up and down without a reason. It
    looks like overfitting, but regularisation does not help. The deployed model gives the same answer for all inputs.

Why it happens
    ``fit_transform`` of the training samples, or a ``Normalize`` in the training transform, changes these alone. The
    model gets numbers of around 0 in training and the raw numbers later, which have the same shape.

Fix
    Apply the statistics of the training samples to all others.

        x_train = scaler.fit_transform(x_train)
        x_test = scaler.transform(x_test)

When this is fine
    - The held-out samples are scaled elsewhere: in a dataset, in the loop, in a pipeline.
    - Only the targets are scaled, and the predictions are scaled back before they are compared.
    - The raw samples go to another model, such as a tree.
    - The evaluation is meant to use samples of another kind.

How it is detected
    The sanitizer compares the range, mean and deviation of each feature, or of each channel of images, in training and
    in an evaluation on other samples. It reports 30 or more rows if the training inputs have mean 0 and deviation 1, or
    the range 0 to 1, and three in five features of the others have a mean beyond 3, or a deviation beyond a factor
    of 3; of images, if the training ones are normalised and the others fill 0 to 1 or 0 to 255. The code must scale
    something. Features that all changed alike, such as the days of one series, are not reported. It also reports inputs
    whose range and deviation differ by the factor 255, where the code divides by 255.

    The linter reports a training array that is scaled with its own statistics if its counterpart goes to a model, a
    ``TensorDataset`` or, for targets, a loss, and no line could scale it; and the transform of held-out images without
    the ``Normalize`` of the training images. It also reports a mean or deviation that a program loads together with
    the weights of a model and never reads, and data that is scaled by a mean and deviation that were computed a second
    time, from training data that was scaled in between.

References
    scikit-learn, "Common pitfalls: inconsistent preprocessing", https://scikit-learn.org/stable/common_pitfalls.html
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import Evidence, SourceLocation
from trueloop.core.source_text import read_source
from trueloop.failures.data.held_out_not_scaled import (
    normalize_left_out,
    raw_held_out,
    scaled_twice,
    unread_statistics,
)
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed

if TYPE_CHECKING:
    from trueloop.tracing.trackers.input_statistics import Columns, HeldOutInputs

MIN_FEATURES: Final = 2
MIN_SHARE: Final = 0.6
FAR: Final = 3.0
MAX_ERROR: Final = 0.3  # of the logarithm of a factor
MAX_LINES: Final = 3
_SCALING: Final = re.compile(r"transform\(|Normalize|normali[sz]e|\.std\(|np\.std|\.max\(")
_BYTES: Final = re.compile(r"/=? ?\(?255\b|div_?\(255|\* ?\(?1\.?0? ?/ ?255|0\.00392|\bToTensor\(|to_tensor\(")
_OTHER_KIND: Final = re.compile(r"ood|out.of.dist|shift|corrupt|extrapolat|adversar|drift", re.IGNORECASE)


class Detector(BaseDetector):
    """Compares the scale of training inputs with that of held-out inputs."""

    def __init__(self) -> None:
        self._compared = False

    def on_held_out_inputs(self, event: HeldOutInputs) -> Evidence | None:
        """Return evidence of held-out inputs on the scale of the raw data."""
        from trueloop.tracing.trackers.input_statistics import scaling_line

        self._compared = True
        train, other = event.training, event.held_out
        if len(train.mean) != len(other.mean) or not train.mean:
            return None
        if (ends := _bytes(train, other)) and (lines := _divided_by_255(event)):
            return Evidence(
                message=f"The inputs of {event.model.name} differ by the factor 255 between training and this "
                f"evaluation: the numbers are {ends}.",
                location=event.location,
                related=tuple((each, "pixels are divided by 255 here") for each in lines[:MAX_LINES]),
            )
        reason = _images(train, other) if event.channels else _features(train, other)
        text = read_source(event.location.source_location.path) if reason and event.location else ""
        scales = scaling_line(event)
        if not reason or _OTHER_KIND.search(text) or (scales is event.location and not _SCALING.search(text)):
            return None
        return Evidence(
            message=f"{event.model.name} is trained on scaled inputs and evaluated here on others that are not scaled: "
            f"{reason}.",
            location=event.location,
            related=((scales, "the training inputs are scaled here"),)
            if scales and scales is not event.location
            else (),
        )

    def inconclusive(self) -> str:
        """Return a reason if no held-out inputs were seen."""
        return "" if self._compared else "no evaluation on other samples than the training ones was seen"


def _features(train: Columns, other: Columns) -> str:
    """Return how the features of held-out samples differ from those of scaled training samples; "" if they do not."""
    from trueloop.tracing.trackers.input_statistics import MIN_ROWS

    columns = list(
        zip(train.mean, train.deviation, train.smallest, train.largest, other.mean, other.deviation, strict=True)
    )
    scaled = [each for each in columns if abs(each[0]) < 0.1 and abs(each[1] - 1) < 0.15]
    in_range = [each for each in columns if abs(each[2]) < 1e-4 and abs(each[3] - 1) < 1e-4 and 0 < each[0] < 1]
    chosen = scaled if len(scaled) >= len(in_range) else in_range
    if len(chosen) < max(MIN_FEATURES, len(columns) / 2):
        return ""
    least = 1 / FAR if chosen is scaled else 0
    many = other.rows >= MIN_ROWS
    far = [each for each in chosen if abs(each[4]) > FAR or (many and (each[5] > FAR or 0 < each[5] < least))]
    means, deviations = [e[4] for e in chosen], [e[5] for e in chosen]
    alike = max(means) - min(means) < 1 and max(deviations) < 1.5 * min(deviations)
    if len(far) < MIN_SHARE * len(chosen) or (alike and max(map(abs, means)) < 100):
        return ""
    worst = max(far, key=lambda e: abs(e[4]) + e[5])
    rows = f"{other.rows} row{'s' * (other.rows > 1)}"
    return (
        f"in training a feature has mean {worst[0]:.2g} and deviation {worst[1]:.2g}, and in the {rows} of this "
        f"evaluation mean {worst[4]:.3g} and deviation {worst[5]:.3g} ({len(far)} of {len(chosen)} features differ "
        "this much)"
    )


def _images(train: Columns, other: Columns) -> str:
    """Return how the range of held-out images differs from that of normalised training images; "" if it does not."""
    ends = [(min(each.smallest), max(each.largest)) for each in (train, other)]
    (low, high), (least, most) = ends
    is_raw = 0 <= least < 0.1 and (0.6 < most <= 1 or 100 < most <= 255)
    is_normalised = low < -0.3 and high > 0.3 and max(map(abs, train.mean)) < 1
    is_wide = all(b < 0.8 * a or b > 20 for a, b in zip(train.deviation, other.deviation, strict=True))
    is_bytes = low >= 0 and 0.6 < high <= 1 and most > 100 and least >= 0
    if not is_bytes and not (is_raw and is_normalised and is_wide):
        return ""
    return f"pixels are between {low:.2g} and {high:.2g} in training, and between {least:.3g} and {most:.3g} here"


def _bytes(train: Columns, other: Columns) -> str:
    """Return the ranges of pixels that differ by the factor 255, the largest byte; "" if they do not."""
    from trueloop.tracing.trackers.input_statistics import MIN_ROWS

    ends = [(min(each.smallest), max(each.largest)) for each in (train, other)]
    widths = [most - least for least, most in ends]
    deviations = [math.hypot(*each.deviation) for each in (train, other)]
    if other.rows < MIN_ROWS or min(*widths, *deviations) <= 0:
        return ""
    errors = [abs(abs(math.log(a / b)) - math.log(255)) for a, b in (widths, deviations)]
    if max(errors) > MAX_ERROR:
        return ""
    return "between {:.2g} and {:.2g} in training, and between {:.2g} and {:.2g} here".format(*ends[0], *ends[1])


def _divided_by_255(event: HeldOutInputs) -> list[SourceLocation]:
    """Return the lines of the program that divide by 255."""
    from trueloop.tracing.running_code import user_modules

    own = event.location.source_location.path if event.location else ""
    return [
        SourceLocation(file, number)
        for file in dict.fromkeys([own, *user_modules().values()])
        for number, line in enumerate(read_source(file).splitlines(), 1)
        if _BYTES.search(line)
    ]


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield held-out arrays without the scaling, and transforms without the ``Normalize``, of the training part."""
    if "Normalize" in source.text.source:
        yield from normalize_left_out.find(source)
    if any(word in source.text.source for word in ("transform(", "mean(", "min(")):
        yield from raw_held_out.find(source)
    if source.text.source.count("mean(") > 1:
        yield from scaled_twice.find(source)
    if "load(" in source.text.source:
        yield from source.hits_unless(unread_statistics.OTHER_WAY, unread_statistics.find(source))


BAD = """
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(500, 10) * torch.arange(1, 11) + 30
y = (x[:, 0] > 30).long()
x_train, x_test = x[:400], x[400:]
mean, deviation = x_train.mean(0), x_train.std(0)
x_train = (x_train - mean) / deviation
model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(20):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x_train), y[:400]).backward()
    optimizer.step()
with torch.no_grad():
    print((model(x_test).argmax(1) == y[400:]).float().mean().item())
"""

FAILURE = Failure(
    code="DAT035",
    title="Held-out inputs are not scaled as the training inputs are",
    severity=Severity.WARNING,
    doc=__doc__ or "",
    bad=BAD,
    good=changed(BAD, {"print((model(x_test)": "print((model((x_test - mean) / deviation)"}),
    fix="Apply the scaling of the training samples to the held-out samples: `scaler.transform(x_test)`.",
    rule=Rule(
        required_words=(
            "fit_transform(|.fit(|mean(|min(|Normalize|load_state_dict(&std|load_state_dict(&mean",
            "torch",
            "test|te|val|dev|Xv|:]",
        ),
        find=find,
    ),
    detector=Detector,
)
