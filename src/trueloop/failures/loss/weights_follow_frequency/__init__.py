"""The class weights of a loss, or ``pos_weight``, grow with the frequency of the classes, or belong to other classes.

What you see
    The rare classes are hardly ever predicted. The accuracy is that of always answering the most frequent class, and it
    gets worse for the rare ones than without any weights.

Why it happens
    The counts themselves, or the shares, are used as weights, or ``pos_weight`` is positives / negatives. Every weight
    is valid, and the loss falls quickly, because the frequent class alone decides it.

    Or the weights are the right numbers in the wrong order: ``Counter(labels).most_common()`` sorts by count, not by
    the number of the class.

Fix
    Weight a class by the inverse of its frequency, and positive targets by negatives / positives.

        counts = torch.bincount(labels)
        criterion = nn.CrossEntropyLoss(weight=counts.sum() / (len(counts) * counts))
        criterion = nn.BCEWithLogitsLoss(pos_weight=(labels == 0).sum() / (labels == 1).sum())

When this is fine
    - The weights fall as the frequency grows.
    - The batches are balanced by a sampler, so that all classes are equally frequent.
    - Two classes have weights that express costs, such as those of a false alarm, and not their frequencies.
    - A class has weight 0, so that it is ignored.

How it is detected
    The sanitizer counts the targets of each class. It reports weights that grow with the counts: with three or more
    classes, wherever one is at least 1.5 times as frequent as another; with two, if they are as the counts, or as their
    square roots. The counts and the weights have to differ by a factor of 2, in at least 100 targets with 10 of each
    class. It also reports weights of three or more classes that are, sorted, the inverse counts, or their square roots,
    if a class has a weight that is wrong by a factor of 1.5 or more. The linter reports a ``pos_weight`` of
    positives / negatives or positives / all, by how the targets are counted and by names such as ``n_pos``, and class
    weights that are ``bincount`` divided by one number.

References
    torch.nn.CrossEntropyLoss, https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html
    torch.nn.BCEWithLogitsLoss, https://docs.pytorch.org/docs/stable/generated/torch.nn.BCEWithLogitsLoss.html
    King and Zeng, "Logistic Regression in Rare Events Data", Political Analysis 9, 2001
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from trueloop.core.findings import CodePosition, Evidence, SourceLocation
from trueloop.core.formatting import format_float, format_percent
from trueloop.failures.data.sampler_weights_misplaced import exchanged_weights
from trueloop.failures.failure import BaseDetector, Failure, Severity, changed
from trueloop.failures.loss.weights_follow_frequency.ratios_in_source import RULE
from trueloop.tracing.events import LossGraphRead, MeasuredLoss, WatchEnded
from trueloop.tracing.source_calls import calls_in

MAX_CLASSES: Final = 256
MAX_TARGETS: Final = 1 << 18  # counted in one loss; they take 1 ms
MAX_LOSSES: Final = 16
MIN_TARGETS: Final = 100
MIN_OF_CLASS: Final = 10
MIN_FACTOR: Final = 2.0
"""Smallest factor between the counts, and between the weights, of the most and the least frequent class."""
CLEARLY_MORE: Final = 1.5
CRITERIA: Final = ("CrossEntropyLoss", "NLLLoss", "BCEWithLogitsLoss", "cross_entropy", "nll_loss")


@dataclass(slots=True)
class _Counts:
    """The targets of losses with the same weights."""

    weights: tuple[float, ...]
    location: CodePosition | None
    positive: bool
    """Whether the weights are those of positive targets, one for each column."""
    counts: list[int] = field(default_factory=list[int])
    """Number of targets of each class, or of positive targets in each column."""
    others: list[int] = field(default_factory=list[int])
    """Number of negative targets in each column."""


class Detector(BaseDetector):
    """Compares the weights of a loss with the frequencies of the targets, at the end of the program."""

    def __init__(self) -> None:
        self._losses = dict[Any, _Counts]()

    def on_loss_graph_read(self, event: LossGraphRead) -> None:
        """Count the targets of losses with weights."""
        for loss in event.live_losses:
            weights = loss.weight if loss.kind == "nll" else loss.positive_weight
            if weights is None or loss.kind not in _COUNTERS or not (weights.is_cpu and loss.targets.is_cpu):
                continue
            if weights.numel() > MAX_CLASSES:
                continue
            values = tuple(weights.flatten().tolist())
            key = (loss.kind, event.location, loss.position, values)
            if key not in self._losses and len(self._losses) >= MAX_LOSSES:
                continue
            counts = self._losses.setdefault(key, _Counts(values, event.location, loss.kind != "nll"))
            _COUNTERS[loss.kind](counts, loss)

    def on_watch_ended(self, event: WatchEnded) -> Iterator[Evidence]:
        """Return evidence for each loss whose weights grow with the frequency of the classes."""
        for each in self._losses.values():
            message = _positives(each) if each.positive else _classes(each)
            if message:
                yield Evidence(
                    message=message,
                    location=_criterion_line(each) or each.location,
                    related=((each.location, "`backward()`"),) if each.location else (),
                )
                return

    def inconclusive(self) -> str:
        """Return a reason if there were no class weights, or too few targets."""
        enough = any(sum(each.counts) + sum(each.others) >= MIN_TARGETS for each in self._losses.values())
        return "" if enough else f"no loss with class weights and {MIN_TARGETS} targets on the CPU was seen"


def _count_classes(counts: _Counts, loss: MeasuredLoss) -> None:
    """Count the targets of each class; those of an ignored class, which is negative or too large, are left out."""
    targets, classes = loss.targets.flatten()[:MAX_TARGETS], len(counts.weights)
    if targets.is_floating_point():
        return
    valid = targets[(targets >= 0) & (targets < classes) & (targets != loss.ignore_index)]
    new = valid.bincount(minlength=classes).tolist()
    counts.counts = [a + b for a, b in zip(counts.counts or [0] * classes, new, strict=True)]


def _count_positives(counts: _Counts, loss: MeasuredLoss) -> None:
    """Count the targets of 0 and of 1 in each column that has a weight of its own."""
    columns = len(counts.weights)
    if columns > 1 and loss.targets.shape[-1:] != (columns,):
        return
    targets = loss.targets.reshape(-1, columns)[: MAX_TARGETS // columns]
    positive, negative = (targets == 1).sum(0).tolist(), (targets == 0).sum(0).tolist()
    counts.counts = [a + b for a, b in zip(counts.counts or [0] * columns, positive, strict=True)]
    counts.others = [a + b for a, b in zip(counts.others or [0] * columns, negative, strict=True)]


_COUNTERS: Final = {"nll": _count_classes, "bce_with_logits": _count_positives}


def _classes(found: _Counts) -> str:
    """Return a message if the class weights grow with the counts."""
    numbered = zip(itertools.count(), found.counts, found.weights, strict=False)
    classes = sorted((each for each in numbered if each[1] >= MIN_OF_CLASS and each[2] > 0), key=lambda each: each[1])
    total = sum(found.counts)
    if len(classes) < 2 or total < MIN_TARGETS:
        return ""
    if not _grows(classes):
        return _exchanged(classes)
    most, least = classes[-1], classes[0]
    return (
        f"The class weights grow with the frequency of the classes: class {most[0]}, "
        f"{format_percent(most[1] / total)} of the targets, has the weight {format_float(most[2])}, and class "
        f"{least[0]}, {format_percent(least[1] / total)}, has {format_float(least[2])}."
    )


def _exchanged(classes: Sequence[tuple[int, int, float]]) -> str:
    """Return a message if the weights are the inverse counts of other classes."""
    found = exchanged_weights([(count, weight) for _, count, weight in classes])
    if found is None:
        return ""
    (count, weight), right = found
    number = next(number for number, *pair in classes if pair == [count, weight])
    return (
        f"The class weights are those of other classes: sorted, they are the inverse counts of the classes, but class "
        f"{number} has the weight {format_float(weight)}, where its count gives {format_float(right)}."
    )


def _grows(classes: Sequence[tuple[int, int, float]]) -> bool:
    """Return True if the weights of classes, which are sorted by their counts, grow with the counts."""
    (_, fewest, lowest), (_, largest, highest) = classes[0], classes[-1]
    if largest < MIN_FACTOR * fewest or highest < MIN_FACTOR * lowest:
        return False
    pairs = [(a, b) for a, b in itertools.combinations(classes, 2) if b[1] >= CLEARLY_MORE * a[1]]
    if any(b[2] <= a[2] for a, b in pairs):
        return False
    if len(classes) > 2:
        return True
    return _is_power(highest / lowest, largest / fewest, 1 / largest + 1 / fewest)


def _is_power(weights: float, counts: float, variance: float) -> bool:
    """Return True for a factor between weights that is the factor between counts, or its square root."""
    exponent = math.log(weights) / math.log(counts)
    error = 0.05 + variance**0.5 / abs(math.log(counts))
    return min(abs(exponent - 1), abs(exponent - 0.5) * 2) < min(error, 0.2)


def _positives(found: _Counts) -> str:
    """Return a message if the weights of positive targets are positives / negatives."""
    judged = [
        (column, positive, negative, weight)
        for column, (positive, negative, weight) in enumerate(
            zip(found.counts, found.others, found.weights, strict=False)
        )
        if min(positive, negative) >= MIN_OF_CLASS
        and max(positive, negative) >= MIN_FACTOR * min(positive, negative)
        and weight > 0
        and positive + negative >= MIN_TARGETS
    ]
    inverted = [
        each for each in judged if each[3] != 1 and _is_power(each[3], each[1] / each[2], 1 / each[1] + 1 / each[2])
    ]
    if not inverted or len(inverted) < len(judged):
        return ""
    column, positive, negative, weight = max(inverted, key=lambda each: abs(math.log(each[1] / each[2])))
    where = f" of column {column}" if len(found.weights) > 1 else ""
    return (
        f"`pos_weight`{where} is {format_float(weight)}, as positives / negatives, but {positive} of "
        f"{positive + negative} targets are positive: the right weight is about {format_float(negative / positive)}."
    )


def _criterion_line(found: _Counts) -> SourceLocation | None:
    """Return the line that creates or calls the loss with weights."""
    from trueloop.tracing.running_code import user_modules

    first = (found.location.source_location.path,) if found.location else ()
    keywords = {"pos_weight"} if found.positive else {"weight"}
    for file in dict.fromkeys((*first, *user_modules().values())):
        for call in calls_in(file):
            name = getattr(call.func, "attr", getattr(call.func, "id", ""))
            given = keywords & {each.arg for each in call.keywords} or (name.endswith("Loss") and call.args)
            if name in (*CRITERIA, "binary_cross_entropy_with_logits") and given:
                return SourceLocation(file, call.lineno)
    return None


BAD = """
import torch
from torch import nn

torch.manual_seed(0)
inputs = torch.randn(600, 8)
labels = (inputs[:, 0] > 0.5).long() + (inputs[:, 0] > 1.3).long()
weights = torch.bincount(labels) / len(labels)
criterion = nn.CrossEntropyLoss(weight=weights)
model = nn.Linear(8, 3)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(3):
    for rows in torch.randperm(600).split(50):
        optimizer.zero_grad()
        criterion(model(inputs[rows]), labels[rows]).backward()
        optimizer.step()
"""

FAILURE = Failure(
    code="LOS015",
    title="Class weights grow with the frequency of the classes",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(
        BAD,
        {
            "weights = torch.bincount(labels) / len(labels)": (
                "counts = torch.bincount(labels)\nweights = counts.sum() / (3 * counts)"
            )
        },
    ),
    fix="Weight a class by the inverse of its frequency: counts.sum() / (classes * counts).",
    rule=RULE,
    detector=Detector,
)
