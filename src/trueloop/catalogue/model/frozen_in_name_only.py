"""A module is told not to want gradients by an attribute that modules do not have, and goes on training.

Symptom
    Fine-tuning "with a frozen backbone" needs as much memory and time as without, and the backbone's weights move: on
    few data the model forgets what it knew.

Why nothing raises
    ``requires_grad`` is an attribute of tensors. ``model.fc.requires_grad = False`` gives the module ``fc`` a new
    attribute of that name, which nothing reads.

Look-alikes
    ``module.requires_grad_(False)``, which does it; ``parameter.requires_grad = False`` for each of
    ``module.parameters()``; a module that keeps its own setting under that name and freezes its weights itself, wholly
    or in part; a frozen part that no optimizer is given. Reported is a module whose parameters all want gradients, and
    that an optimizer steps. The text alone shows the assignment, where what it is to is surely a module.

Fix
    ``module.requires_grad_(False)``, before the optimizer is made; and ``module.eval()`` where its batch normalisation
    is to stay as it is, too.

References
    CSCYQJ/MICCAI23-ProtoContra-SFDA#18, "this does not freeze the last layer",
    https://github.com/CSCYQJ/MICCAI23-ProtoContra-SFDA/issues/18
    catalyst-team/catalyst#81, "Fix freeze", https://github.com/catalyst-team/catalyst/pull/81
    PyTorch Forums, "Requires_grad doesn't propagate to the parameters of the module",
    https://discuss.pytorch.org/t/requires-grad-doesnt-propagate-to-the-parameters-of-the-module/9979
    torch.nn.Module.requires_grad_, https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import ClassVar

from trueloop.ground.events import Event, FrozenInName, StepTaken
from trueloop.ground.failure import Failure, Rule, Severity
from trueloop.ground.findings import Evidence
from trueloop.ground.source.operations import Act
from trueloop.ground.source.source import Hit, Source
from trueloop.ground.source.text import Fix
from trueloop.ground.source.things import PART, Kind, Thing

PARTS = re.compile(
    r"(?:fc|layer|conv|bn|net|linear|lin|stage|block)_?\d*|features?|classifier|backbone|(?:en|de)coder|heads?|bert|"
    r"roberta|body|stem|blocks|layers|base(?:_model)?|transformer|vgg|resnet|discriminator|generator|module|outc"
)
"""Names that networks have for modules within them, and never for a tensor."""


class Detector:
    """Waits for a step of what is frozen in name."""

    moments: ClassVar[tuple[type[Event], ...]] = (FrozenInName, StepTaken)

    def __init__(self) -> None:
        self._frozen: list[FrozenInName] = []
        self._trained = False

    def observe(self, event: FrozenInName | StepTaken) -> list[Evidence] | None:
        """Return evidence when parameters of such a module are stepped."""
        if isinstance(event, StepTaken):
            self._trained = True
            return self._stepped(event) if self._frozen else None
        self._frozen.append(event)
        return None

    def _stepped(self, event: StepTaken) -> list[Evidence]:
        moved = [each for each in self._frozen if not each.parameters.isdisjoint(event.with_gradient)]
        self._frozen = [each for each in self._frozen if each not in moved]
        return [
            Evidence(
                message=f"{_called(each)} has an attribute requires_grad = False, which modules do not read: "
                f"{len(each.parameters & event.with_gradient)} of its {len(each.parameters)} parameters are trained.",
                place=each.place,
                related=((event.place, "stepped here"),) if event.place else (),
                fix=f"Call {each.name or 'model'}.requires_grad_(False).",
                about=(each.model, each.name),
            )
            for each in moved
        ]

    def abstains(self) -> str:
        """Return a reason where nothing was trained."""
        return "" if self._trained else "no optimizer stepped"


def _called(event: FrozenInName) -> str:
    return f"{event.name} of {event.model.name}" if event.name else event.model.name


def find(source: Source) -> Iterator[Hit]:
    """Yield the assignments of False to an attribute ``requires_grad`` of a module."""
    told = set[int]()
    for each in source.acts(Act.FROZEN):
        target = each.node
        if each.value is not False or not isinstance(target, ast.Attribute) or id(target) in told:
            continue
        own = isinstance(target.value, ast.Name) and target.value.id == "self"
        if own or not all(_surely_a_module(way) for way in each.subject.alternatives()):
            continue
        told.add(id(target))
        name = source.text.of(target.value)
        statement = each.statement
        plain = isinstance(statement, ast.Assign) and statement.targets == [target]
        yield Hit(
            message=f"{name} is a module, which has no requires_grad: its parameters go on training.",
            node=target,
            fix=Fix((source.text.replace(statement, f"{name}.requires_grad_(False)"),), False, "Freeze its parameters")
            if plain and "#" not in source.text.of(statement)
            else None,
        )


def _surely_a_module(thing: Thing) -> bool:
    if thing.kind is not Kind.MODEL or PART not in thing.facts:
        return thing.kind is Kind.MODEL
    node = thing.node
    if isinstance(node, ast.Attribute):
        return PARTS.fullmatch(node.attr) is not None
    method = node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""
    return method in ("children", "modules", "named_children", "named_modules")


RULE = Rule(words=("requires_grad", "False"), find=find)

FAILURE = Failure(
    code="MDL006",
    title="A module is frozen in name only",
    severity=Severity.WARNING,
    doc=__doc__ or "",
    bad="""
import torch
from torch import nn

backbone = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
head = nn.Linear(16, 1)
backbone.requires_grad = False
model = nn.Sequential(backbone, head)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(10):
    x = torch.randn(32, 8)
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
    optimizer.step()
""",
    good="""
import torch
from torch import nn

backbone = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
head = nn.Linear(16, 1)
backbone.requires_grad_(False)
model = nn.Sequential(backbone, head)
optimizer = torch.optim.SGD(head.parameters(), lr=0.01)
for step in range(10):
    x = torch.randn(32, 8)
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
    optimizer.step()
""",
    fix="Freeze its parameters: module.requires_grad_(False).",
    rule=RULE,
    detector=Detector,
)
