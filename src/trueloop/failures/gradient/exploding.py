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

How it is detected
    In a run with one optimizer and without clipping, the sanitizer looks for successive updates in which both the loss
    and the gradient norm grow by at least half each time, at no more than twice the first learning rate, and without
    slowing down. It reports them once the norm is more than 1000 times the first one, not counting the largest single
    increase. It does not detect slower growth, or growth in updates that were not fully traced.

References
    Pascanu et al., 2013, "On the difficulty of training recurrent neural networks", arXiv:1211.5063
    torch.nn.utils.clip_grad_norm_, https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_norm_.html
"""

import math
from itertools import pairwise

from trueloop.core.findings import Evidence
from trueloop.failures.failure import BaseDetector, Failure, Severity, changed
from trueloop.tracing.events import BackwardEnded, GradientsClipped, Ref, StepTaken, TracingGap

MIN_GROWTH = 1000
MIN_GROWTH_PER_UPDATE = 1.5
MAX_RATE_CHANGE = 2  # ratio to the first learning rate


_Update = tuple[StepTaken, float, float]
"""A step, its gradient norm and its loss."""


class Detector(BaseDetector):
    """Records successive updates in which the gradient norm and the loss grow."""

    subscribes_to = (StepTaken, BackwardEnded, GradientsClipped, TracingGap)

    def __init__(self) -> None:
        self._not_applicable = ""
        self._optimizer: Ref | None = None
        self._loss: float | None = None
        self._read = False
        self._growth: list[_Update] = []
        """Consecutive updates, each with a larger norm and loss than the one before."""

    def observe(self, event: StepTaken | BackwardEnded | GradientsClipped | TracingGap) -> Evidence | None:
        """Return evidence once the gradient norm has grown a thousandfold."""
        if isinstance(event, StepTaken):
            self._step(event)
            return self._check_growth(event) if len(self._growth) > 2 else None
        if isinstance(event, BackwardEnded):
            self._loss = event.root_value
        elif isinstance(event, GradientsClipped):
            self._not_applicable = self._not_applicable or ("" if event.only_measured else "the gradients are clipped")
        else:
            self._growth = []
        return None

    def _step(self, event: StepTaken) -> None:
        loss, self._loss = self._loss, None
        self._optimizer = self._optimizer or event.optimizer
        if event.optimizer is not self._optimizer:
            self._not_applicable = self._not_applicable or "several optimizers step"
        if event.grad_norm is None or loss is None or event.closure or not event.learning_rates:
            self._growth = []
            return
        self._read = True
        latest, growth = (event, event.grad_norm, loss), self._growth
        if not (0 < event.grad_norm < math.inf and 0 < loss < math.inf):
            self._growth = []
        elif growth and _grows(growth[-1], latest) and _is_comparable(growth[0][0], event):
            growth.append(latest)
        else:
            self._growth = [latest]

    def _check_growth(self, event: StepTaken) -> Evidence | None:
        growth = self._growth
        if self._not_applicable:
            return None
        largest_increase = max(after / before for (_, before, _), (_, after, _) in pairwise(growth))
        (first, first_norm, first_loss), (_, middle_norm, _) = growth[0], growth[len(growth) // 2]
        _, norm, loss = growth[-1]
        since = first.update
        slows_down = norm / middle_norm < middle_norm / first_norm
        if norm <= MIN_GROWTH * largest_increase * first_norm or slows_down:
            return None
        return Evidence(
            message=f"The gradient norm grew from {first_norm:.3g} to {norm:.3g} and the loss from {first_loss:.3g} to "
            f"{loss:.3g} between updates {since} and {event.update}; both rose in every update.",
            location=event.location,
            first_update=since,
        )

    def inconclusive(self) -> str:
        """Return why the growth could not be measured."""
        return self._not_applicable or ("" if self._read else "no update had a norm and a loss that could be read")


def _grows(before: _Update, latest: _Update) -> bool:
    return latest[1] >= MIN_GROWTH_PER_UPDATE * before[1] and latest[2] >= MIN_GROWTH_PER_UPDATE * before[2]


def _is_comparable(first: StepTaken, latest: StepTaken) -> bool:
    """Return True for steps with equal numbers of backward passes, equal parameters and similar learning rates."""
    same = latest.with_gradient == first.with_gradient and latest.backwards == first.backwards
    return same and max(latest.learning_rates) <= MAX_RATE_CHANGE * max(first.learning_rates)


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
