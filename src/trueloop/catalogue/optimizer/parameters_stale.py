"""The optimizer steps parameters that the model no longer has.

Symptom
    The loss does not move at all, or a replaced layer never learns. Every line of the loop is there.

Why nothing raises
    An optimizer keeps the tensors it was given. Building the model anew, replacing a layer, re-assigning a parameter
    or copying a model back makes other tensors; the old ones get no gradient any more, and a step without gradients
    does nothing.

Look-alikes
    Heads that are used later; an optimizer that belongs to a model which is not trained just now; gradients that are
    assigned by hand (meta-learning, evolution strategies, master weights); parameters outside of any module;
    averaged copies. Reported is only the pair: parameters of a called model that get gradients, are in no optimizer
    and keep their values, while an optimizer that is stepped meanwhile holds others that are in no model called, had
    no gradient at the step and got none from any backward, three times in a row.

Fix
    Build the optimizer after the last change of the model, or build it again; to restore weights, use
    ``load_state_dict``, which changes the tensors the optimizer holds.

References
    torch.optim, constructing it, https://docs.pytorch.org/docs/stable/optim.html#constructing-it
    torch.nn.Module.load_state_dict, https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any, ClassVar

from trueloop.ground.events import NONE, BackwardEnded, Event, Gap, ModelCalled, OptimizerCreated, Ref, Refs, StepTaken
from trueloop.ground.facts import Facts
from trueloop.ground.failure import Failure, Severity
from trueloop.ground.findings import Evidence, Place
from trueloop.ground.words import counted

UPDATES = 3


class Detector:
    """Looks for an optimizer's parameters in the models that are called."""

    moments: ClassVar[tuple[type[Event], ...]] = (OptimizerCreated, ModelCalled, BackwardEnded, StepTaken, Gap)

    def __init__(self) -> None:
        self._models = Facts[Ref, tuple[Refs, int]]()
        """Parameters of each model, and the updates made when it was called last."""
        self._steps = Facts[Ref, tuple[int, int]]()
        """Updates made before the two latest steps of each optimizer."""
        self._held: weakref.WeakSet[Ref] = weakref.WeakSet()
        self._built: weakref.WeakKeyDictionary[Ref, Place | None] = weakref.WeakKeyDictionary()
        self._stale: weakref.WeakKeyDictionary[Ref, tuple[Refs, int]] = weakref.WeakKeyDictionary()
        self._since: dict[Ref, Refs] = {}
        """Optimizer -> what got gradients since its latest step; emptied by every gap."""
        self._missing: Refs = NONE
        self._values: dict[str, tuple[Any, ...]] = {}
        self._changed = False
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
        self._models.put(event.model, (event.parameters, event.update))
        if self._missing and not self._missing.isdisjoint(event.parameters):
            values = _values(event.live, self._missing)
            self._changed = any(self._values.get(name, value) != value for name, value in values.items())
            self._values = values

    def _stepped(self, event: StepTaken) -> Evidence | None:
        optimizer, received = event.optimizer, self._since.get(event.optimizer)
        self._since[optimizer] = NONE
        before_last, last = self._steps.get(optimizer) or (event.update, event.update)
        self._steps.put(optimizer, (last, event.update))
        if received is None:
            return None
        called: list[Refs] = []
        for parameters, update in self._models.facts():
            if update >= before_last:
                if event.parameters is parameters or event.parameters <= parameters:
                    return None  # the usual case
                called.append(parameters)
        in_models = NONE.union(*called)
        if event.parameters <= in_models or optimizer in self._told:
            return None
        self._held.update(event.parameters)
        stale = event.parameters - in_models - event.with_gradient - received
        self._missing = missing = (received & in_models).difference(self._held)
        before, times = self._stale.get(optimizer, (NONE, 0))
        if not stale or not missing or self._changed:
            self._stale.pop(optimizer, None)
            return None
        self._stale[optimizer] = (stale, times + 1 if stale == before else 1)
        if times + 1 < UPDATES or stale != before or not self._values:
            return None
        self._told.add(optimizer)
        return self._evidence(event, stale, missing)

    def _evidence(self, event: StepTaken, stale: Refs, missing: Refs) -> Evidence:
        built = self._built.get(event.optimizer)
        return Evidence(
            message=f"{counted(len(stale), 'parameter')} of the {len(event.parameters)} in this {event.optimizer.kind} "
            f"are in no model that is called and get no gradients, while {_listed(missing)} of the model "
            "got them and stayed as before, in no optimizer.",
            place=event.place,
            related=((built, "the optimizer was built here"),) if built is not None else (),
        )

    def abstains(self) -> str:
        """Nothing is left open."""
        return ""


def _listed(refs: Iterable[Ref]) -> str:
    names = sorted(ref.name for ref in refs)
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def _values(model: Any, refs: Refs) -> dict[str, tuple[Any, ...]]:
    """A few numbers of some parameters: the first ones where that needs no waiting, and the version."""
    names = {ref.name for ref in refs}
    found: dict[str, tuple[Any, ...]] = {}
    for name, parameter in model.named_parameters():
        if name in names:
            first = parameter.detach().flatten()[:4].tolist() if parameter.device.type == "cpu" else ()
            found[name] = (parameter._version, *first)  # noqa: SLF001 - a tensor has no public count of its changes
    return found


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
print(f"loss {loss.item():.3f}")
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
print(f"loss {loss.item():.3f}")
""",
    fix="Build the optimizer after the last change of the model's parameters.",
    detector=Detector,
)
