"""A part of the model gets gradients that no optimizer ever uses.

What you see
    Some layers stay as they were initialised. The rest learns around them, so the loss falls, only not as far. A head
    that was added after the optimizer was built is the usual one.

Why it happens
    ``backward()`` fills ``.grad`` of every leaf it reaches, and an optimizer steps the parameters it was given. That
    the first are more than the second is nobody's business.

Fix
    Build the optimizer after the model is complete, or give it the new parameters with ``add_param_group``; where they
    are to stay fixed, say so with ``requires_grad_(False)``, which saves their gradients too.

When this is fine
    A backbone that is not trained, without ``requires_grad_(False)``; training a small part on purpose (biases, a
    prompt, adapters); parameters that are updated by hand; discriminators, perceptual losses and teachers, which are
    models of their own; another optimizer that has not stepped yet; gradients that are only looked at; stages. Reported
    is a model of which the greater part is stepped, while some of its other parameters, not just the first layers, got
    gradients in at least four updates, are in no optimizer that was ever built, and kept their values all the while.
    A last layer that is fixed on purpose, yet wants gradients, would be named too: hence a warning. In the text it
    shows where a model gets a layer after its optimizer was built, or where a layer behind those that are stepped is in
    no optimizer of the file.

References
    torch.optim, constructing it, https://docs.pytorch.org/docs/stable/optim.html#constructing-it
    Optimizer.add_param_group,
    https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.add_param_group.html
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from trueloop.analysis.abstract_value import Kind
from trueloop.analysis.operations import OpKind
from trueloop.analysis.queries.late_layers import changes, missing, rebuilt_behind
from trueloop.analysis.source_file import Hit, Source
from trueloop.core.findings import Evidence, CodePosition
from trueloop.core.formatting import format_count, first_few
from trueloop.failures import failure
from trueloop.failures.failure import Failure, Rule, Severity
from trueloop.failures.teaching_script import Piece, TeachingLoop
from trueloop.tracing.events import NONE, BackwardEnded, Event, Gap, ModelCalled, OptimizerCreated, Ref, Refs, StepTaken
from trueloop.tracing.object_facts import Facts
from trueloop.tracing.parameter_snapshot import glimpsed, name_in

UPDATES = 4  # in which a parameter got a gradient nobody used: other optimizers have been built, or stepped, by then


@dataclass(slots=True)
class Known:
    """A model that was called."""

    parameters: Refs
    order: dict[str, int]
    left: Refs | None = None
    """Of the parameters, those that no optimizer holds; None = to be found out."""
    missing: Refs = NONE
    updates: int = 0
    values: dict[str, tuple[Any, ...]] = field(default_factory=dict[str, tuple[Any, ...]])
    """Of the missing ones, a few numbers each, to see whether somebody changes them."""
    changed: bool = False

    def place(self, parameter: Ref) -> int:
        """Return which of the model's parameters one is; -1 = of another name."""
        return self.order.get(name_in(self.order, parameter.name), -1)


class Detector(failure.Detector):
    """Compares what gets gradients with what optimizers hold."""

    subscribes_to: ClassVar[tuple[type[Event], ...]] = (OptimizerCreated, ModelCalled, BackwardEnded, StepTaken, Gap)

    def __init__(self) -> None:
        self._models = Facts[Ref, Known]()
        self._settled = False
        """Some optimizer holds each parameter of all models."""
        self._held: weakref.WeakSet[Ref] = weakref.WeakSet()
        self._groups = Facts[Ref, Refs]()
        self._built = Facts[Ref, CodePosition | None]()
        self._received: Refs = NONE
        self._backward_at: CodePosition | None = None
        self._told: weakref.WeakSet[Ref] = weakref.WeakSet()

    def observe(self, event: OptimizerCreated | ModelCalled | BackwardEnded | StepTaken | Gap) -> Evidence | None:
        """Return evidence at a step that leaves some of a model's parameters out."""
        if isinstance(event, StepTaken):
            return self._stepped(event)
        if isinstance(event, ModelCalled):
            self._called(event)
        elif isinstance(event, BackwardEnded):
            self._received = self._received | event.received if self._received else event.received
            self._backward_at = event.place
        elif isinstance(event, OptimizerCreated):
            self._hold(event.optimizer, event.parameters)
            self._built.put(event.optimizer, event.place)
        else:
            self._received = NONE
        return None

    def _hold(self, optimizer: Ref, parameters: Refs) -> None:
        if self._groups.get(optimizer) is not parameters:
            self._groups.put(optimizer, parameters)
            self._held.update(parameters)
            self._settled = False
            for known in self._models.facts():
                known.left = None

    def _called(self, event: ModelCalled) -> None:
        known = self._models.get(event.model)
        if known is None or known.parameters is not event.parameters:
            order = {name: place for place, (name, _) in enumerate(event.live.named_parameters(remove_duplicate=False))}
            known = self._models.put(event.model, Known(event.parameters, order))
            self._settled = False
        if known.missing and not known.changed:
            values = glimpsed(event.live, {ref.name for ref in known.missing})
            known.changed = any(known.values.get(name, value) != value for name, value in values.items())
            known.values = values

    def _stepped(self, event: StepTaken) -> Evidence | None:
        self._hold(event.optimizer, event.parameters)
        received, self._received = self._received, NONE
        if self._settled:  # the usual case
            return None
        self._settled = True
        for model, known in self._models.items():
            if known.left is None:
                known.left = known.parameters.difference(self._held)
            if not known.left and not known.missing:
                continue
            self._settled = False
            if known.changed or not received or event.with_gradient.isdisjoint(known.parameters):
                continue
            missing = received & known.left
            if not missing:
                known.missing, known.updates = NONE, 0
                continue
            known.missing, known.updates = missing, known.updates + 1
            if known.updates >= UPDATES and known.values and model not in self._told and self._certain(event, known):
                self._told.add(model)
                return self._evidence(event, model, known)
        return None

    def _certain(self, event: StepTaken, known: Known) -> bool:
        """The greater part is stepped, something before the missing ones is, and no optimizer holds strangers."""
        stepped = known.parameters.intersection(self._held)
        first = min((known.place(ref) for ref in event.with_gradient & known.parameters), default=-1)
        last_missing = max(known.place(ref) for ref in known.missing)
        in_models = NONE.union(*(other.parameters for other in self._models.facts()))
        strangers = event.parameters - in_models - event.with_gradient
        return len(stepped) > len(known.missing) and 0 <= first < last_missing and not strangers

    def _evidence(self, event: StepTaken, model: Ref, known: Known) -> Evidence:
        names = sorted(ref.name for ref in known.missing)
        built, words, place = self._built.get(event.optimizer), "the optimizer was built here", event.place
        if built is not None and place == self._backward_at:  # `trainer.fit(...)`: somebody else's loop is run by it
            built, words, place = place, "it is stepped in here", built
        return Evidence(
            message=f"{format_count(len(names), 'parameter')} of {model.name} got gradients in {known.updates} updates, but "
            f"are in no optimizer and stay as they were: {first_few(names)}.",
            location=place,
            related=((built, words),) if built is not None else (),
        )


def find(source: Source) -> Iterator[Hit]:
    """Yield the first step of an optimizer that leaves out a layer of its model."""
    for made in source.acts(OpKind.MADE):
        if made.subject.kind is not Kind.OPTIMIZER:
            continue
        built = (made.node, "the optimizer was built here")
        for change in changes(source, made):
            if not change.replaces:
                yield Hit(
                    message="The model got a part after this optimizer was built, and no optimizer has its parameters.",
                    node=change.step.node,
                    related=(built, (change.operation.node, "added here")),
                    fix=rebuilt_behind(source, made, change.operation),
                )
        for left in missing(source, made):
            yield Hit(
                message="A layer behind those that are stepped gets gradients, and is in no optimizer.",
                node=left.step.node,
                related=(built, (left.layer.node, "the layer that stays as it is")),
            )


RULE = Rule(words=("torch", "optim", "backward(", ".step("), find=find)


def inject(loop: TeachingLoop) -> None:
    """Break the teaching loop this way."""
    loop.require(bool(loop.settings["hidden"]), "Without hidden layers there is nothing but the head.", hidden=(16,))
    kept = "[p for name, p in model.named_parameters() if 'head' not in name]"
    loop.replace(Piece.OPTIMIZER, "model.parameters()", kept)


FAILURE = Failure(
    code="OPT001",
    title="Parameters are missing in the optimizer",
    severity=Severity.WARNING,
    doc=__doc__ or "",
    bad="""
import torch
from torch import nn

torch.manual_seed(0)
inputs, labels = torch.randn(128, 8), torch.randint(0, 3, (128,))
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU())
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
model.append(nn.Linear(16, 3))
for step in range(10):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(inputs), labels)
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.3f}")
""",
    good="""
import torch
from torch import nn

torch.manual_seed(0)
inputs, labels = torch.randn(128, 8), torch.randint(0, 3, (128,))
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU())
model.append(nn.Linear(16, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(10):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(inputs), labels)
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.3f}")
""",
    fix="Build the optimizer after the model is complete, or add the parameters with add_param_group.",
    rule=RULE,
    detector=Detector,
    inject=inject,
)
