"""``retain_graph=True`` keeps the graph of every update for a second backward that never comes.

Symptom
    The peak of memory is up to twice what it need be: the graph of the update before is still there while the next one
    is made. It does not grow with the run.

Why nothing raises
    The flag is a wish for later, and it is not known beforehand whether there will be a second pass. Often it was added
    against "Trying to backward through the graph a second time", and what it was needed for has gone.

Look-alikes
    Several losses over one trunk, each with a backward of its own, of which all but the last retain; the generator that
    goes through the graph of its fakes again; truncated backpropagation through time whose windows overlap; a graph
    made once and used in every update; a penalty now and then; ``create_graph``, which retains by itself. Certain
    because hooks on every node of these graphs would have seen a second pass: the graphs that one line retained in
    twelve different updates died, and through none of them anything ran backward again.

Fix
    Leave ``retain_graph`` out, or pass it only where another backward through the same graph follows.

References
    torch.Tensor.backward, https://docs.pytorch.org/docs/stable/generated/torch.Tensor.backward.html
"""

from __future__ import annotations

from typing import ClassVar

from trueloop.ground.events import BackwardStarted, Event, GraphsRetained
from trueloop.ground.failure import Failure, Severity
from trueloop.ground.findings import Evidence

ENOUGH = 13  # updates that retain, before it can be told of the first twelve


class Detector:
    """The source knows which graphs died unused; it is told once for each line."""

    moments: ClassVar[tuple[type[Event], ...]] = (BackwardStarted, GraphsRetained)

    def __init__(self) -> None:
        self._updates: set[int] = set()

    def observe(self, event: BackwardStarted | GraphsRetained) -> Evidence | None:
        """Return evidence where a line retains for nothing."""
        if isinstance(event, GraphsRetained):
            return Evidence(
                message=f"{event.count} graphs were retained here, and nothing ran backward through any of them again "
                "before they were gone.",
                place=event.place,
            )
        if event.retain_graph and not event.create_graph and len(self._updates) < ENOUGH:
            self._updates.add(event.update)
        return None

    def abstains(self) -> str:
        """Return a reason where graphs were retained, yet in too few updates."""
        few = 0 < len(self._updates) < ENOUGH
        return f"graphs were retained in fewer than {ENOUGH} updates that were watched in full" if few else ""


FAILURE = Failure(
    code="MEM002",
    title="Graphs are retained for nothing",
    severity=Severity.WARNING,
    doc=__doc__ or "",
    bad="""
import torch
from torch import nn

x = torch.rand(256, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(20):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward(retain_graph=True)
    optimizer.step()
""",
    good="""
import torch
from torch import nn

x = torch.rand(256, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(20):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
""",
    fix="Leave retain_graph out, or pass it only where another backward through the same graph follows.",
    detector=Detector,
)
