"""The optimizer steps parameters that the model no longer has.

What you see
    The loss does not move at all, or a replaced layer never learns. Every line of the loop is there.

Why it happens
    An optimizer keeps the tensors it was given. Building the model anew, replacing a layer, re-assigning a parameter
    or copying a model back makes other tensors; the old ones get no gradient any more, and a step without gradients
    does nothing.

Fix
    Build the optimizer after the last change of the model, or build it again; to restore weights, use
    ``load_state_dict``, which changes the tensors the optimizer holds.

When this is fine
    Heads that are used later; an optimizer that belongs to a model which is not trained just now; gradients assigned by
    hand (meta-learning, evolution strategies, master weights); parameters outside of any module; averaged copies.
    Reported is only the pair: parameters of a called model that get gradients, are in no optimizer and keep their
    values, while an optimizer that is stepped meanwhile holds others that are in no model called, had no gradient at
    the step, or a used one, and got none from any backward, three times in a row. In the text it shows where a layer, a
    parameter or the whole model is replaced after the optimizer was built, and none is built over them.

References
    torch.optim, constructing it, https://docs.pytorch.org/docs/stable/optim.html#constructing-it
    torch.nn.Module.load_state_dict, https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from trueloop.analysis.abstract_value import MANAGED, PART, AbstractValue, Kind
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.queries.late_layers import changes, rebuilt_behind
from trueloop.analysis.source_file import Hit, Source
from trueloop.core.findings import Evidence, CodePosition
from trueloop.core.formatting import format_count, first_few
from trueloop.failures import failure
from trueloop.failures.failure import Failure, Rule, Severity
from trueloop.failures.teaching_script import Piece, adding
from trueloop.tracing.events import NONE, BackwardEnded, Event, Gap, ModelCalled, OptimizerCreated, Ref, Refs, StepTaken
from trueloop.tracing.object_facts import Facts
from trueloop.tracing.parameter_snapshot import glimpsed

UPDATES = 3


@dataclass(slots=True)
class _Called:
    """A model."""

    parameters: Refs
    update: int
    """Updates made when it was called last."""


class Detector(failure.Detector):
    """Looks for an optimizer's parameters in the models that are called."""

    subscribes_to: ClassVar[tuple[type[Event], ...]] = (OptimizerCreated, ModelCalled, BackwardEnded, StepTaken, Gap)

    def __init__(self) -> None:
        self._models = Facts[Ref, _Called]()
        self._latest: Refs = NONE
        """Parameters of the model called last."""
        self._steps = Facts[Ref, list[int]]()
        """Updates made before the two latest steps of each optimizer."""
        self._since: dict[Ref, Refs] = {}
        """Optimizer -> what got gradients since its latest step; emptied by every gap."""
        self._held: weakref.WeakSet[Ref] = weakref.WeakSet()
        self._built: weakref.WeakKeyDictionary[Ref, CodePosition | None] = weakref.WeakKeyDictionary()
        self._stale: weakref.WeakKeyDictionary[Ref, tuple[Refs, int]] = weakref.WeakKeyDictionary()
        self._missing: Refs = NONE
        self._values: dict[str, tuple[Any, ...]] = {}
        self._changed: set[str] = set()
        self._told: weakref.WeakSet[Ref] = weakref.WeakSet()

    def observe(self, event: OptimizerCreated | ModelCalled | BackwardEnded | StepTaken | Gap) -> Evidence | None:
        """Return evidence at the third step of an optimizer that holds what no model has."""
        if isinstance(event, StepTaken):
            return self._stepped(event)
        if isinstance(event, ModelCalled):
            self._called(event)
        elif isinstance(event, BackwardEnded):
            for optimizer, received in self._since.items():
                self._since[optimizer] = received | event.received if received else event.received
        elif isinstance(event, OptimizerCreated):
            self._held.update(event.parameters)
            self._built[event.optimizer] = event.place
        else:
            self._since.clear()
        return None

    def _called(self, event: ModelCalled) -> None:
        known, self._latest = self._models.get(event.model), event.parameters
        if known is None:
            self._models.put(event.model, _Called(event.parameters, event.update))
        else:
            known.parameters, known.update = event.parameters, event.update
        if self._missing and not self._missing.isdisjoint(event.parameters):
            before, self._values = self._values, glimpsed(event.live, {ref.name for ref in self._missing})
            self._changed.update(name for name, value in self._values.items() if before.get(name, value) != value)

    def _stepped(self, event: StepTaken) -> Evidence | None:
        received, self._since[event.optimizer] = self._since.get(event.optimizer), NONE
        known = self._steps.get(event.optimizer) or self._steps.put(event.optimizer, [event.update, event.update])
        before_last, known[0], known[1] = known[0], known[1], event.update
        if received is None or event.parameters is self._latest:  # the usual case
            return None
        return self._compare(event, received, before_last)

    def _compare(self, event: StepTaken, received: Refs, since: int) -> Evidence | None:
        optimizer = event.optimizer
        in_models = NONE.union(*(each.parameters for each in self._models.facts() if each.update >= since))
        if event.parameters <= in_models or optimizer in self._told:
            return None
        self._held.update(event.parameters)
        stale = event.parameters - in_models - (event.with_gradient - event.used) - received
        self._missing = (received & in_models).difference(self._held)
        missing = frozenset(each for each in self._missing if each.name not in self._changed)
        before, times = self._stale.get(optimizer, (NONE, 0))
        if not stale or not missing:
            self._stale.pop(optimizer, None)
            return None
        self._stale[optimizer] = (stale, times + 1 if stale == before else 1)
        if times + 1 < UPDATES or stale != before or not self._values:
            return None
        self._told.add(optimizer)
        return self._evidence(event, stale, missing)

    def _evidence(self, event: StepTaken, stale: Refs, missing: Refs) -> Evidence:
        built, names = self._built.get(event.optimizer), sorted(ref.name for ref in missing)
        return Evidence(
            message=f"{format_count(len(stale), 'parameter')} of the {len(event.parameters)} in this {event.optimizer.kind} "
            f"are in no model that is called and get no gradients, while {first_few(names)} of the model "
            "got them and stayed as before, in no optimizer.",
            location=event.place,
            related=((built, "the optimizer was built here"),) if built is not None else (),
        )


def find(source: Source) -> Iterator[Hit]:
    """Yield the first step of an optimizer whose model, or a layer of it, was replaced after it was built."""
    for made in source.acts(OpKind.MADE):
        if made.subject.kind is not Kind.OPTIMIZER:
            continue
        for change in changes(source, made):
            if change.replaces:
                yield Hit(
                    message="The optimizer was built before a part of the model was replaced, and holds the old one.",
                    node=change.step.node,
                    related=((made.node, "the optimizer was built here"), (change.operation.node, "replaced here")),
                    fix=rebuilt_behind(source, made, change.operation),
                )
        yield from _left_behind(source, made)


def _left_behind(source: Source, made: Op) -> Iterator[Hit]:
    """Yield steps over one model behind backwards through another one of the same making, which nothing updates."""
    optimizer, since = made.subject, made.index
    held = optimizer.models()
    run = [each for each in source.operations if each.root == made.root]
    if not held or MANAGED in optimizer.facts or any(_by_hand(each) for each in run):
        return
    others = [each.subject for each in source.acts(OpKind.MADE) if each.subject.kind is Kind.OPTIMIZER]
    for step in run:
        if step.act is not OpKind.STEPPED or step.subject is not optimizer:
            continue
        between = [each for each in run if since < each.index < step.index]
        roots, since = [each.subject for each in between if each.act is OpKind.BACKWARD], step.index
        called = any(each.act is OpKind.CALLED and each.subject.may_be(one) for each in between for one in held)
        through = [_models(each) for each in roots]
        models = [each for found in through for each in found]
        alike = all(through) and any(each.name and each.name == one.name for each in models for one in held)
        if called or not alike or any(one.covers(each) or each.covers(one) for each in models for one in others):
            continue
        if not any(source.handed_out(each, run) for each in (optimizer, *models)):
            yield Hit(
                message="The optimizer steps the parameters of a model that this loss was not computed with.",
                node=step.node,
                related=((made.node, "the optimizer was built here"),),
            )


def _models(root: AbstractValue) -> list[AbstractValue]:
    """Return the models a loss was computed with, without the parts of each."""
    found = [each for each in root.lineage() if each.kind is Kind.MODEL]
    inner = {id(part) for each in found for part in each.of if PART not in each.facts}
    return [each for each in found if id(each) not in inner]


def _by_hand(operation: Op) -> bool:
    """Return True where gradients or parameters are set by hand."""
    if operation.act is OpKind.GRADIENTS or (operation.act is OpKind.CLEARED and operation.word == "grad"):
        return True
    looked: list[AbstractValue] = [operation.subject] if operation.act in (OpKind.TORCH, OpKind.KEPT) else []
    return any(inner.kind is Kind.PARAMETERS for each in looked for inner in each.lineage())


RULE = Rule(words=("torch", "optim", "backward(", ".step("), find=find)

FAILURE = Failure(
    code="OPT002",
    title="The optimizer holds parameters the model no longer has",
    severity=Severity.ERROR,
    doc=__doc__ or "",
    bad="""
import torch
from torch import nn

torch.manual_seed(0)
inputs, labels = torch.randn(128, 8), torch.randint(0, 5, (128,))
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
model[2] = nn.Linear(16, 5)
for step in range(10):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(inputs), labels)
    loss.backward()
    optimizer.step()
""",
    good="""
import torch
from torch import nn

torch.manual_seed(0)
inputs, labels = torch.randn(128, 8), torch.randint(0, 5, (128,))
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
model[2] = nn.Linear(16, 5)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(10):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(inputs), labels)
    loss.backward()
    optimizer.step()
""",
    fix="Build the optimizer after the last change of the model's parameters.",
    rule=RULE,
    detector=Detector,
    inject=adding(Piece.OPTIMIZER, "model.head = nn.Linear(model.head.in_features, model.head.out_features)"),
)
