"""Training ends while the learning rate is still being warmed up.

What you see
    Training is much slower than with the same learning rate and no schedule, and more epochs help more than usual. The
    learning rate rises from the first update to the last.

Why it happens
    The length of the warm-up was copied from a larger run: 4,000 updates are little for a Transformer that trains for
    100,000, but a small dataset has a few hundred. The learning rate that was given to the optimizer is never reached.

Fix
    Make the warm-up a part of the run, 3 to 10 %.

        total = epochs * len(loader)
        warmup_steps = total // 20

When this is fine
    - The run is only a test of the program, or was ended early.
    - A test of learning rates, which raises the rate on purpose.

How it is detected
    In a run, the sanitizer compares the learning rate at the end with that of the optimizer when the scheduler was
    built. It reports a rate that has never fallen and ends below half of it, after at least 150 updates and 3 steps of
    a LambdaLR, LinearLR or a scheduler of the program. Runs that end with an error are not judged.

References
    Vaswani et al., 2017, "Attention Is All You Need", section 5.3, arXiv:1706.03762
    LambdaLR, https://docs.pytorch.org/docs/stable/generated/torch.optim.lr_scheduler.LambdaLR.html
"""

import weakref
from collections.abc import Iterator
from typing import Final

from trueloop.core.findings import Evidence
from trueloop.core.formatting import format_percent
from trueloop.failures.failure import BaseDetector, Failure, Severity, changed
from trueloop.tracing.events import ErrorRaised, Ref, SchedulerStepped, WatchEnded
from trueloop.tracing.trackers.schedule_courses import ScheduleCourses

MAX_SHARE: Final = 0.5  # of the optimizer's rate
MIN_UPDATES: Final = 150  # fewer are a test of the program
MIN_STEPS: Final = 3
OWN_PEAKS: Final = ("OneCycleLR", "CyclicLR", "ReduceLROnPlateau")
"""Schedulers whose highest rate is not that of the optimizer."""


class Detector(BaseDetector):
    """Compares the last learning rate of each schedule that only rises with that of the optimizer."""

    courses: ScheduleCourses

    def __init__(self) -> None:
        self._schedulers: weakref.WeakKeyDictionary[Ref, weakref.WeakSet[Ref]] = weakref.WeakKeyDictionary()
        """Optimizer -> its schedulers; of several, one may be the warm-up of another."""
        self._is_broken_off = False

    def on_scheduler_stepped(self, event: SchedulerStepped) -> None:
        """Record the scheduler."""
        self._schedulers.setdefault(event.optimizer, weakref.WeakSet()).add(event.scheduler)

    def on_error_raised(self, event: ErrorRaised) -> None:
        """Record that the program was broken off."""
        self._is_broken_off = True

    def on_watch_ended(self, event: WatchEnded) -> Iterator[Evidence]:
        """Return evidence for each schedule that ends below half of the optimizer's rate and has never fallen."""
        alone = {next(iter(each)) for each in self._schedulers.values() if len(each) == 1}
        for scheduler, course in self.courses.by_scheduler.items():
            if scheduler not in alone or self._is_broken_off or course.kind in OWN_PEAKS or not course.is_complete:
                continue
            is_rising = course.first_rate < course.rate == course.highest
            is_long = course.updates >= MIN_UPDATES and course.steps >= MIN_STEPS
            if is_rising and is_long and course.rate < MAX_SHARE * course.base_rate:
                share = format_percent(course.rate / course.base_rate)
                yield Evidence(
                    message=f"The run ended during the warm-up: the learning rate rose in all {course.updates} updates "
                    f"and reached {course.rate:.2g}, {share} of the {course.base_rate:.2g} of the optimizer.",
                    location=course.built_at or course.location,
                )


BAD = """
import torch
from torch import nn

torch.manual_seed(0)
inputs = torch.randn(256, 8)
targets = inputs.sum(dim=1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
warmup = 4000
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / warmup))
for epoch in range(20):
    for rows in torch.randperm(256).split(32):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs[rows]), targets[rows])
        loss.backward()
        optimizer.step()
        scheduler.step()
    print(epoch, loss.item())
"""

FAILURE = Failure(
    code="SCH014",
    title="Training ends during the warm-up",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"warmup = 4000": "warmup = 10"}),
    fix="Make the warm-up shorter: 3 to 10 % of the updates of the run.",
    detector=Detector,
)
