"""Gradients grow a thousandfold from update to update, and the loss grows with them.

What you see
    The gradient norm grows by orders of magnitude and does not fall again, and soon the loss is ``inf`` or ``nan``.

Why it happens
    Each update is so large that it makes the next gradients larger. Large gradients are valid numbers and no error.

Fix
    Lower the learning rate, use warm-up or clip the norm. Check the initialisation and the scale of the inputs.

        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

When this is fine
    - Only one update has a large norm, the learning rate is still in its warm-up, or the norm is clipped.
    - You use a learning rate finder, which increases the learning rate on purpose.
    - A loss term, a reward or new parameters are added during training.
    - You train two networks against each other in turn.
    - The program goes back to earlier weights within 32 updates.

How it is detected
    In a run with one optimizer and without clipping, the sanitizer looks for successive updates in which both the loss
    and the gradient norm grow by at least half each time, without slowing down, while the learning rate at most
    doubles. It reports them once the norm has grown more than 1000 times, not counting the largest single increase. It
    does not detect slower growth, or growth in updates that were not fully traced.

References
    Pascanu et al., 2013, "On the difficulty of training recurrent neural networks", arXiv:1211.5063
    torch.nn.utils.clip_grad_norm_, https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_norm_.html
"""

import math
from itertools import pairwise
from typing import NamedTuple

from trueloop.core.findings import Evidence
from trueloop.failures.failure import BaseDetector, Failure, Severity, changed
from trueloop.tracing.events import BackwardEnded, GradientsClipped, Ref, StateLoaded, StepTaken, TracingGap, WatchEnded
from trueloop.tracing.trackers.accumulation_windows import AccumulationWindows

MIN_GROWTH = 1000
MIN_GROWTH_PER_UPDATE = 1.5
UNTIL_CERTAIN = 32  # updates after the growth, in which the program may go back to earlier weights
MAX_RATE_CHANGE = 2  # ratio to the first learning rate


class _Update(NamedTuple):
    event: StepTaken
    norm: float
    loss: float
    backwards: int
    """Number of backward passes before the step."""


"""A step, its gradient norm and its loss."""


class Detector(BaseDetector):
    """Records successive updates in which the gradient norm and the loss grow."""

    windows: AccumulationWindows

    def __init__(self) -> None:
        self._not_applicable = ""
        self._optimizer: Ref | None = None
        self._loss: float | None = None
        self._read = False
        self._pending_since = 0
        self._pending: Evidence | None = None
        """Evidence that holds unless the program goes back to earlier weights soon."""
        self._growth: list[_Update] = []
        """Consecutive updates, each with a larger norm and loss than the one before."""

    def on_step_taken(self, event: StepTaken) -> Evidence | None:
        """Return evidence some updates after the gradient norm has grown a thousandfold."""
        self._step(event)
        if self._pending is None:
            self._pending = self._check_growth(event) if len(self._growth) > 2 else None
            self._pending_since = event.update
            return None
        if event.update < self._pending_since + UNTIL_CERTAIN:
            return None
        evidence, self._pending = self._pending, None
        return evidence

    def on_state_loaded(self, event: StateLoaded) -> None:
        """Forget the growth if the program goes back to earlier weights."""
        if event.what == "model":
            self._pending, self._growth = None, []

    def on_watch_ended(self, event: WatchEnded) -> Evidence | None:
        """Return evidence of a growth shortly before the end."""
        return self._pending

    def on_backward_ended(self, event: BackwardEnded) -> None:
        """Record the backward pass."""
        self._loss = event.root_value

    def on_gradients_clipped(self, event: GradientsClipped) -> None:
        """Record the clipped gradients."""
        self._not_applicable = self._not_applicable or ("" if event.only_measured else "the gradients are clipped")

    def on_tracing_gap(self, event: TracingGap) -> None:
        """Discard incomplete observations."""
        self._growth = []

    def _step(self, event: StepTaken) -> None:
        loss, self._loss = self._loss, None
        self._optimizer = self._optimizer or event.optimizer
        if event.optimizer is not self._optimizer:
            self._not_applicable = self._not_applicable or "several optimizers step"
        if event.grad_norm is None or loss is None or event.closure or not event.learning_rates:
            self._growth = []
            return
        self._read = True
        latest = _Update(event, event.grad_norm, loss, self.windows.ended_by(event.optimizer).backwards)
        growth = self._growth
        if not (0 < event.grad_norm < math.inf and 0 < loss < math.inf):
            self._growth = []
        elif growth and _grows(growth[-1], latest) and _is_comparable(growth[0], latest):
            growth.append(latest)
        else:
            self._growth = [latest]

    def _check_growth(self, event: StepTaken) -> Evidence | None:
        growth = self._growth
        if self._not_applicable:
            return None
        largest_increase = max(after.norm / before.norm for before, after in pairwise(growth))
        first, middle_norm, norm = growth[0], growth[len(growth) // 2].norm, growth[-1].norm
        since = first.event.update
        slows_down = norm / middle_norm < middle_norm / first.norm
        if norm <= MIN_GROWTH * largest_increase * first.norm or slows_down:
            return None
        return Evidence(
            message=f"The gradient norm grew from {first.norm:.3g} to {norm:.3g} and the loss from {first.loss:.3g} to "
            f"{growth[-1].loss:.3g} between updates {since} and {event.update}; both rose in every update.",
            location=event.location,
            first_update=since,
        )

    def inconclusive(self) -> str:
        """Return why the growth could not be measured."""
        return self._not_applicable or ("" if self._read else "no update had a norm and a loss that could be read")


def _grows(before: _Update, latest: _Update) -> bool:
    return min(latest.norm / before.norm, latest.loss / before.loss) >= MIN_GROWTH_PER_UPDATE


def _is_comparable(first: _Update, latest: _Update) -> bool:
    """Return True for steps with equal numbers of backward passes, equal parameters and similar learning rates."""
    same = latest.event.with_gradient == first.event.with_gradient and latest.backwards == first.backwards
    return same and max(latest.event.learning_rates) <= MAX_RATE_CHANGE * max(first.event.learning_rates)


BAD = """
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=2.5)
for step in range(16):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="GRD008",
    title="Gradients explode",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(
        BAD,
        {
            "optimizer = torch.optim.SGD(model.parameters(), lr=2.5)": (
                "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)"
            )
        },
    ),
    fix="Lower the learning rate, or clip the norm of the gradients.",
    detector=Detector,
)
