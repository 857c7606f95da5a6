"""The learning rate is too low or too high for this optimizer and model, and the run does not learn.

What you see
    Too low: the loss hardly moves, or falls to that of a model that always predicts the mean and stays there. Too high:
    the loss rises, jumps, or ends at a value above that of the first update.

Why it happens
    A good learning rate depends on the optimizer, the initial weights and the scale of the loss. 0.01 is common for SGD
    with momentum and ten times too high for Adam; without momentum, and behind sigmoids, it can be a hundred times too
    low. PyTorch has no means to know.

Fix
    Try rates that differ by a factor of 10. An update should change each weight by about 0.1 % of its norm.

        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)  # a good first value for Adam
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)  # and for SGD

When this is fine
    - A model is fine-tuned at a very low rate: its loss is below that of a constant prediction.
    - A warm-up has not ended, or a search for the rate raises it until the loss diverges.
    - Labels are random, or an adversary keeps the loss up.

How it is detected
    In a run, the sanitizer compares a sample of each weight before and after every seventh fully traced update. If the
    loss did not fall clearly below that of the best constant prediction, it reports a rate as too low if 100 or more
    updates changed no weight by more than 2 % in total, or if the latest updates changed weights behind sigmoids by
    less than 0.01 % each, at a rate that was not lowered. It reports a rate as too high if the loss ended 20 % above
    its start and above that of a constant prediction, and early updates changed weights by 30 % or more, or if they
    changed them by 500 %. It does not read weights on a GPU, and does not judge while the rate rises.

References
    Andrej Karpathy, 2015, "CS231n: ratio of weights:updates", https://cs231n.github.io/neural-networks-3/#ratio
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from trueloop.core.findings import CodePosition, Evidence
from trueloop.core.formatting import format_float, format_percent
from trueloop.core.learning import LearningSummary, LearningVerdict
from trueloop.failures.failure import BaseDetector, Failure, Severity, changed
from trueloop.failures.teaching_script import Piece, TeachingLoop
from trueloop.tracing.events import LossGraphRead, OptimizerCreated, Ref, WatchEnded

if TYPE_CHECKING:
    from trueloop.tracing.trackers.learning_progress import LearningProgress, WeightChange

MIN_READ = 8  # updates of an optimizer whose effect was read
LATEST = 4  # of them that show what an update still changes: late in a run, few are read
LOW_UPDATES = 100
LOW_MOVED = 0.02  # of the norm of a weight, over the whole run
LOW_RATIO = 1e-4  # of the norm of a weight, in one update: ten times less than is usual
HIGH_RATIO = 0.3  # of the norm of a weight; 0.1 is common in the first update of a small model
EXTREME_RATIO = 5.0  # of the norm of a weight: nothing is left of its first values
WORSE = 1.2  # times the loss at the start, and times that of the best constant prediction
RISING = 2.0  # times its first value; a rate that has risen this much is a warm-up or a search
MIN_TRAINED = 0.75  # of the points of the teaching loop
MAX_OPTIMIZERS = 8  # as many as the tracker compares


class Detector(BaseDetector):
    """Judges the changes of weights at the end of a run that does not learn."""

    progress: LearningProgress

    def __init__(self) -> None:
        self._locations: dict[Ref, CodePosition | None] = {}
        self._behind_sigmoid = False

    def on_optimizer_created(self, event: OptimizerCreated) -> None:
        """Record where the rate is set."""
        if len(self._locations) < MAX_OPTIMIZERS:
            self._locations[event.optimizer] = event.location

    def on_loss_graph_read(self, event: LossGraphRead) -> None:
        """Record whether layers lie behind sigmoids."""
        names = [node.operation for node in event.live_nodes]
        if "Sigmoid" in names:
            first_layer = next((index for index, name in enumerate(names) if name in ("Addmm", "Mm")), len(names))
            self._behind_sigmoid |= "Sigmoid" in names[first_layer:]

    def on_watch_ended(self, event: WatchEnded) -> Evidence | None:
        """Return evidence for one optimizer."""
        failure = self.progress.failure()
        if failure is None:
            return None
        for optimizer, changes in self.progress.weight_changes().items():
            if len(changes) < MIN_READ or _is_rising(changes):
                continue
            if text := self._too_low(failure, changes) or _too_high(failure, changes):
                rate = changes[-1].rate
                shown = f"Learning rate {format_float(rate)}" if rate is not None else "The learning rate"
                self.progress.cause_reported = True
                return Evidence(
                    message=f"{shown} of `{optimizer.name}` is too {text}. The run does not learn: {failure.losses}.",
                    location=self._locations.get(optimizer),
                    first_update=0,
                )
        return None

    def inconclusive(self) -> str:
        """Return the reason if it is not known whether the run learns."""
        return self.progress.unknown()

    def _too_low(self, failure: LearningSummary, changes: Sequence[WeightChange]) -> str:
        moved, ratios = changes[-1].moved, sorted(each.ratio for each in changes[-LATEST:])
        typical = ratios[len(ratios) // 2]
        if failure.verdict is LearningVerdict.DIVERGING or failure.updates < LOW_UPDATES or not typical:
            return ""
        if moved < LOW_MOVED and typical < LOW_RATIO:
            return f"low: {failure.updates} updates have moved no weight by more than {format_float(100 * moved)} %"
        is_constant = changes[-1].rate is not None and changes[-1].rate >= (changes[0].rate or 0)
        if is_constant and self._behind_sigmoid and typical < LOW_RATIO:
            return f"low behind sigmoids: an update changes a weight by {format_float(100 * typical)} %"
        return ""


def _too_high(failure: LearningSummary, changes: Sequence[WeightChange]) -> str:
    early = [each.ratio for each in changes[: max(2, len(changes) // 4)] if math.isfinite(each.ratio)]
    ratio = max(early, default=0.0)
    is_worse = failure.constant is not None and not failure.end <= WORSE * max(failure.start, failure.constant)
    if ratio < (HIGH_RATIO if is_worse else EXTREME_RATIO):
        return ""
    return f"high: an update changed a weight by {format_percent(ratio)} of its norm"


def _is_rising(changes: Sequence[WeightChange]) -> bool:
    first, last = changes[0].rate, changes[-1].rate
    return first is not None and last is not None and last > RISING * first


def inject(loop: TeachingLoop) -> None:
    """Inject this failure into the teaching loop."""
    settings = loop.settings
    batches = math.ceil(MIN_TRAINED * settings["samples"] / settings["batch"])
    updates = math.ceil(batches / settings["accumulation"])
    epochs = math.ceil(1.5 * LOW_UPDATES / updates)
    loop.require(settings["schedule"] != "onecycle", "OneCycleLR sets the rate itself.", schedule="constant")
    loop.require(settings["epochs"] >= epochs, "The run has too few updates to tell.", epochs=epochs)
    line = loop.pieces[Piece.OPTIMIZER].splitlines()[0]
    loop.replace(Piece.OPTIMIZER, line, re.sub(r"lr=[^,)]+", "lr=1e-07", line))


BAD = """
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(512, 8)
y = (x[:, :1] * x[:, 1:2]).sign()
model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-7)
for step in range(300):
    rows = torch.randint(512, (64,))
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x[rows]), y[rows])
    loss.backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="LRN006",
    title="Learning rate is too low or too high",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"lr=1e-7": "lr=1e-2"}),
    fix="Try learning rates that differ by a factor of 10; 0.1 % of a weight is usual for an update.",
    detector=Detector,
    inject=inject,
)
