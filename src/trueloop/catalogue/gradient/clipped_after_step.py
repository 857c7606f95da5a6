"""Gradients are clipped when a step has used them already.

Symptom
    Clipping has no effect: training blows up as it did without.

Why nothing raises
    Clipping changes the gradients it finds. After the step these are of no use to anybody.

Look-alikes
    A norm that is only measured, with an infinite limit or one that is not reached, may be read at any time. Certain
    where, twice or more, every gradient that a line cut down to the limit had been used by a step with nothing added
    since, and that line never clipped anything else.

Fix
    Clip between the last backward of the window and ``optimizer.step()``.

References
    torch.nn.utils.clip_grad_norm_, https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_norm_.html
    Pascanu et al., 2013, "On the difficulty of training recurrent neural networks", arXiv:1211.5063
"""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

from trueloop.ground.events import Event, GradientsClipped
from trueloop.ground.failure import Failure, Severity
from trueloop.ground.findings import Evidence, Place
from trueloop.ground.teaching import Operation, TeachingLoop

TIMES = 2  # once might be a probe


class Detector:
    """Counts, for each line that clips, how often it came too late."""

    moments: ClassVar[tuple[type[Event], ...]] = (GradientsClipped,)

    def __init__(self) -> None:
        self._late: Counter[Place | None] = Counter()
        self._useful: set[Place | None] = set()

    def observe(self, event: GradientsClipped) -> Evidence | None:
        """Return evidence where a line has never clipped anything that a step would use."""
        line, acts = event.place, event.measured is not None and event.measured > event.limit
        if not event.parameters or event.probe or line in self._useful:
            return None
        if event.consumed != event.parameters:
            self._useful.add(line)
            return None
        self._late[line] += acts or event.kind == "value"
        if self._late[line] < TIMES:
            return None
        return Evidence(
            message=f"{len(event.consumed)} gradients were clipped at {event.limit:g} after a step had used them, "
            f"{self._late[line]} times: clipping has no effect.",
            place=line,
        )

    def abstains(self) -> str:
        """Return ""; clipping is always seen while watching in full."""
        return ""


def inject(loop: TeachingLoop) -> None:
    """Break the teaching loop this way."""
    from torch.nn.utils import clip_grad_norm_

    def tightly() -> None:
        clip_grad_norm_(loop.model.parameters(), 1e-3)

    loop.operations[Operation.CLIP] = tightly
    loop.after_window = [Operation.UPDATE, Operation.CLIP, Operation.SCHEDULE, Operation.CLEAR]


FAILURE = Failure(
    code="GRD010",
    title="Gradients are clipped after the step",
    severity=Severity.ERROR,
    doc=__doc__ or "",
    bad="""
import torch
from torch import nn

x = torch.randn(128, 8)
y = 10 * x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
for step in range(8):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
""",
    good="""
import torch
from torch import nn

x = torch.randn(128, 8)
y = 10 * x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
for step in range(8):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
""",
    fix="Clip between the last backward and optimizer.step().",
    detector=Detector,
    inject=inject,
)
