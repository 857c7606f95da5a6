"""A layer takes part in the forward pass, but the model does not hold it.

What you see
    The layer keeps its initial weights; it is not moved by ``.to(device)`` and missing in ``state_dict()``. The layers
    that are held learn to live with a random one between them.

Why it happens
    ``nn.Module`` registers modules that are assigned to its attributes. In a list, a dictionary or a closure it does
    not see them; calling them works all the same.

Fix
    Use ``nn.ModuleList``, ``nn.ModuleDict`` or ``nn.Sequential``; if it is meant to stay outside, freeze it with
    ``requires_grad_(False)``.

When this is fine
    A frozen network that is kept out of ``parameters()`` on purpose (a perceptual loss, a teacher), a random one that
    is called without gradients (as in random network distillation), one in eval mode, and one whose parameters an
    optimizer holds in another way, are not told. It is told where a module in train mode ran inside a model, is not
    among its modules, got gradients, and belongs to no optimizer when there were three updates. The text alone shows
    layers that a module makes, keeps in a plain list, dictionary or tuple, and does nothing with but call them.

References
    torch.nn.ModuleList, https://docs.pytorch.org/docs/stable/generated/torch.nn.ModuleList.html
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

from trueloop.analysis.queries.unregistered_modules import registered, unheld
from trueloop.analysis.source_file import Hit, Source
from trueloop.core.findings import Evidence
from trueloop.failures import failure
from trueloop.failures.failure import Failure, Rule, Severity
from trueloop.failures.teaching_script import Piece, TeachingLoop
from trueloop.tracing.events import Event, OptimizerCreated, Ref, Refs, StepTaken, StrangerCalled
from trueloop.tracing.object_facts import Facts

STEPS = 3  # another optimizer may come into play after the first


class Detector(failure.Detector):
    """Remembers modules that their model does not hold until it is clear that no optimizer does either."""

    subscribes_to: ClassVar[tuple[type[Event], ...]] = (OptimizerCreated, StrangerCalled, StepTaken)

    def __init__(self) -> None:
        self._strangers: list[StrangerCalled] = []
        self._held: weakref.WeakSet[Ref] = weakref.WeakSet()
        self._holds = Facts[Ref, Refs]()
        self._steps = 0

    def observe(self, event: OptimizerCreated | StrangerCalled | StepTaken) -> Evidence | None:
        """Return evidence for the strangers of one line, together."""
        if isinstance(event, StepTaken):
            self._hold(event)
            self._steps += 1
            return self._judge() if self._steps >= STEPS and self._strangers else None
        if isinstance(event, OptimizerCreated):
            self._hold(event)
        elif event.trainable:
            self._strangers.append(replace(event, live=None))
        return None

    def _hold(self, event: OptimizerCreated | StepTaken) -> None:
        if self._holds.get(event.optimizer) is not event.parameters:
            self._holds.put(event.optimizer, event.parameters)
            self._held.update(event.parameters)

    def _judge(self) -> Evidence | None:
        outside = [stranger for stranger in self._strangers if self._held.isdisjoint(stranger.parameters)]
        self._strangers = []
        if not outside:
            return None
        first = outside[0]
        parameters = sum(len(stranger.parameters) for stranger in outside)
        kinds = ", ".join(sorted({stranger.module.kind for stranger in outside}))
        count = f"A module ({kinds})" if len(outside) == 1 else f"{len(outside)} modules ({kinds})"
        return Evidence(
            message=f"{count} with {parameters} parameters ran inside {first.model.name}, "
            "which does not hold them, and neither does any optimizer: these are not trained, moved or saved.",
            place=first.place,
            update=first.update,
        )

    def inconclusive(self) -> str:
        """Return a reason where nothing was stepped."""
        return "" if self._steps >= STEPS else f"fewer than {STEPS} updates were watched"


def find(source: Source) -> Iterator[Hit]:
    """Yield the calls of layers that their module keeps in a plain container."""
    for found in unheld(source):
        yield Hit(
            message=f"The layers in the attribute {found.bound.word} are called, but the module does not hold them: "
            "they are not trained, moved or saved.",
            node=found.call.node,
            related=((found.bound.node, "kept in a plain container"),),
            fix=registered(source, found),
        )


RULE = Rule(words=("torch", "forward(", "Module", "__init__"), find=find)


def inject(loop: TeachingLoop) -> None:
    """Break the teaching loop this way."""
    loop.require(bool(loop.settings["hidden"]), "There is no hidden layer.", hidden=(16,))
    model = loop.pieces[Piece.MODEL]
    loop.pieces[Piece.MODEL] = re.sub(r"self.layers = nn.ModuleList\((.*)\)", r"self.layers = \1", model)


FAILURE = Failure(
    code="MDL001",
    title="A layer is never registered",
    severity=Severity.WARNING,
    doc=__doc__ or "",
    bad="""
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = [nn.Linear(8, 8) for _ in range(3)]
        self.head = nn.Linear(8, 1)

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return self.head(x)


x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(8):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
""",
    good="""
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.head = nn.Linear(8, 1)

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return self.head(x)


x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(8):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
""",
    fix="Keep layers in nn.ModuleList, nn.ModuleDict or nn.Sequential.",
    rule=RULE,
    detector=Detector,
    inject=inject,
)
