"""A new optimizer over the same parameters is built again and again, and its moments are thrown away.

Symptom
    The loss jumps at the start of each epoch, then recovers. Adam takes its largest steps when its averages are young,
    so it never gets beyond them; momentum never builds up.

Why nothing raises
    Building an optimizer is an ordinary call; that another one held the averages of the same parameters is forgotten
    with it. Inside a function that trains one epoch it looks quite natural.

Look-alikes
    Stages over other parameters, or at another rate; folds, sweeps and restarts, with weights loaded or models built
    anew; tasks and clients, each with data of its own; inner loops over copies; plain SGD, which has nothing to lose;
    LBFGS, which may be restarted. Reported is one line that has built three optimizers or more with moments, over the
    same parameters and at the same rate, each after the one before was stepped, with one pass or less over one and the
    same loader between them and no weights loaded. A method that restarts its averages every epoch on purpose would
    be named too: hence a warning.

Fix
    Build the optimizer once, before the loop, and hand it to the function that trains an epoch. To change the rate,
    use a scheduler or set ``group["lr"]``.

References
    Kingma and Ba, "Adam: A Method for Stochastic Optimization", 2015, arXiv:1412.6980
    How to adjust learning rate, https://docs.pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import ClassVar

from trueloop.ground.events import (
    BackwardStarted,
    Event,
    LoaderStarted,
    OptimizerCreated,
    Ref,
    StateLoaded,
    StepTaken,
)
from trueloop.ground.failure import Failure, Severity
from trueloop.ground.findings import Evidence

TIMES = 3
MOST_LINES = 64


@dataclass(slots=True)
class Line:
    """One line that builds optimizers."""

    optimizer: Ref
    passes: dict[Ref, int] = field(default_factory=dict[Ref, int])
    """Passes begun over each loader since."""
    trained_by: set[Ref | None] = field(default_factory=set[Ref | None])
    rates: tuple[float, ...] = ()
    loaded: bool = False
    before: tuple[Ref, tuple[float, ...]] | None = None
    """Loader and rates of the optimizer built here before this one."""
    times: int = 1


class Detector:
    """Compares each optimizer with the one that the same line built before."""

    moments: ClassVar[tuple[type[Event], ...]] = (
        OptimizerCreated,
        LoaderStarted,
        BackwardStarted,
        StepTaken,
        StateLoaded,
    )

    def __init__(self) -> None:
        self._lines: dict[Hashable, Line] = {}
        self._told: set[Hashable] = set()

    def observe(
        self, event: OptimizerCreated | LoaderStarted | BackwardStarted | StepTaken | StateLoaded
    ) -> Evidence | None:
        """Return evidence when a line has built the third optimizer in a row."""
        if isinstance(event, OptimizerCreated):
            return self._created(event)
        for line in self._lines.values():
            if isinstance(event, LoaderStarted):
                line.passes[event.loader] = line.passes.get(event.loader, 0) + 1
            elif isinstance(event, BackwardStarted):
                line.trained_by.add(event.loader)
            elif isinstance(event, StepTaken):
                if event.optimizer is line.optimizer and not line.rates:
                    line.rates = event.rates
            else:
                line.loaded |= event.what == "model"
        return None

    def _created(self, event: OptimizerCreated) -> Evidence | None:
        if not event.stateful or event.kind == "LBFGS" or event.place is None:
            return None
        key = (event.place, event.kind, event.parameters)
        line = self._lines.pop(key, None)
        if len(self._lines) >= MOST_LINES:
            del self._lines[next(iter(self._lines))]
        self._lines[key] = new = Line(event.optimizer)
        if line is None or line.optimizer not in event.predecessors:
            return None
        loader = next(iter(line.trained_by)) if len(line.trained_by) == 1 else None
        if loader is None or line.passes.get(loader, 0) > 1 or line.loaded or not line.rates:
            return None
        new.before = (loader, line.rates)
        new.times = line.times + 1 if line.before in (None, new.before) else 2
        if new.times < TIMES or key in self._told:
            return None
        self._told.add(key)
        return Evidence(
            message=f"This line has built {new.times} {event.kind} optimizers over the same "
            f"{len(event.parameters)} parameters, each after the one before was stepped through one pass over the data "
            "or less: its averages begin at nothing every time.",
            place=event.place,
        )

    def abstains(self) -> str:
        """Nothing is left open."""
        return ""


FAILURE = Failure(
    code="OPT004",
    title="The optimizer is built again and again",
    severity=Severity.WARNING,
    doc=__doc__ or "",
    bad="""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(160, 8)
loader = DataLoader(TensorDataset(x, x.sum(dim=1, keepdim=True)), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
for epoch in range(5):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
""",
    good="""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(160, 8)
loader = DataLoader(TensorDataset(x, x.sum(dim=1, keepdim=True)), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(5):
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
""",
    fix="Build the optimizer once, before the first epoch.",
    detector=Detector,
)
