"""The best weights are kept by reference, so that training goes on changing them.

What you see
    The "best" model scores like the last one. Early stopping brings no gain, and the file ``best.pt`` holds whatever
    the weights were when it was written. A backup that should undo a change (weights of an average swapped in for an
    evaluation) undoes nothing.

Why it happens
    ``state_dict()`` returns the parameters' own memory under new names, not a copy: that makes saving cheap. Every
    update writes into that memory. Loading it back copies each weight onto itself.

Fix
    Copy at the moment of the capture: ``best = copy.deepcopy(model.state_dict())``, or save to a file right there.

When this is fine
    ``copy.deepcopy(model.state_dict())``, a ``clone()`` of each tensor, a state that is saved or loaded before the
    next update, ``target.load_state_dict(net.state_dict())``, and a checkpoint read from a file are copies, or used in
    time. A dictionary captured before the first update, to be saved again and again with the newest weights, is a way
    to work: it is only named where it is loaded into the very model it belongs to, which no program does on purpose.
    Certain when the tensors that are loaded or saved are the model's own memory, and their numbers have changed since
    the capture. A dictionary that is deep-copied too late is not seen. The text alone shows a state that is taken where
    a best value is updated, while training goes on, and used after it; or one that is loaded into its own model behind
    a change.

References
    PyTorch tutorial "Saving and Loading Models": "best_model_state = model.state_dict() returns a reference to the
    state and not its copy", https://docs.pytorch.org/tutorials/beginner/saving_loading_models.html
    torch.nn.Module.state_dict, https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import ClassVar

from trueloop.analysis.abstract_value import Kind
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.queries.captured_states import copied, holds, keeps_the_best
from trueloop.analysis.queries.modes import trains
from trueloop.analysis.source_file import Hit, Source
from trueloop.core.findings import Evidence
from trueloop.failures import failure
from trueloop.failures.failure import Failure, Rule, Severity
from trueloop.failures.teaching_script import Piece, changing
from trueloop.tracing.events import NONE, Event, Ref, Refs, StateCaptured, StateUsed, StepTaken


class Detector(failure.Detector):
    """Looks at every use of a captured state: whose memory is it, and has it moved since?"""

    subscribes_to: ClassVar[tuple[type[Event], ...]] = (StepTaken, StateCaptured, StateUsed)

    def __init__(self) -> None:
        self._stepped: Refs = NONE
        self._latest: Refs = NONE
        self._trained: weakref.WeakSet[Ref] = weakref.WeakSet()
        """States captured when an optimizer had stepped the model already."""

    def observe(self, event: StepTaken | StateCaptured | StateUsed) -> Evidence | None:
        """Return evidence where the state is the live weights, and these have changed since the capture."""
        if isinstance(event, StepTaken):
            if event.parameters is not self._latest:
                self._latest = event.parameters
                self._stepped |= event.parameters
        elif isinstance(event, StateCaptured):
            if event.parameter in self._stepped:
                self._trained.add(event.state)
        elif event.aliased and event.moved:
            return self._used(event)
        return None

    def _used(self, event: StateUsed) -> Evidence | None:
        into_itself = event.how == "loaded" and event.target is event.module
        if not into_itself and event.state not in self._trained:
            return None  # a handle on the live weights, made before training to be saved again and again
        updates = event.update - event.captured_update
        since = f"{updates} updates have" if updates > 1 else "an update has" if updates else "the program has"
        effect = "loading it back changes nothing" if into_itself else f"what is {event.how} is the newest weights"
        return Evidence(
            message=f"The state captured at update {event.captured_update} is the live weights themselves, which "
            f"{since} changed by update {event.update}: {effect}.",
            location=event.captured_at or event.place,
            related=((event.place, f"{event.how} here"),) if event.place else (),
            update=event.captured_update,
        )


def find(source: Source) -> Iterator[Hit]:
    """Yield the captures of a model's state that are used after its weights have changed."""
    uses = [(each, thing) for each in source.acts(OpKind.STATE_LOADED, OpKind.SAVED) for thing in each.things]
    for taken in source.acts(OpKind.STATE_TAKEN):
        state = taken.result
        if taken.subject.kind is not Kind.MODEL or state is None:
            continue
        for use, thing in uses:
            if use.root != taken.root or use.index < taken.index or not holds(thing, state):
                continue
            if change := _changed(source, taken, use):
                yield Hit(
                    message="The state kept here is the live weights themselves, which change before it is used.",
                    node=taken.node,
                    related=((change.node, "changed here"), (use.node, "used here")),
                    fix=copied(source, taken.node),
                )
                break


def _changed(source: Source, taken: Op, use: Op) -> Op | None:
    """Return what changes the weights between a capture and a use that wants the old ones; None if nothing must."""
    model = taken.subject
    into_itself = use.act is OpKind.STATE_LOADED and use.subject.may_be(model)
    between = [
        each for each in source.operations[taken.index + 1 : use.index]
        if each.root == taken.root and each.branches == taken.branches[: len(each.branches)]
    ]  # fmt: skip
    if into_itself and taken.branches == use.branches and taken.loops == use.loops:
        state = taken.result or model
        if any(each.act is OpKind.KEPT and each.subject.may_be(state) for each in between):
            return None  # something else was put into it
        loaded = [
            each for each in between
            if each.act is OpKind.STATE_LOADED and each.subject.may_be(model)
            and not any(holds(thing, state) for thing in each.things)
        ]  # fmt: skip
        found = [*loaded, *(each for each in between if trains(source, each, model, between))]
        return found[0] if found else None
    loop = next((each for each in taken.loops if not use.within(each)), None)
    if loop is None or not keeps_the_best(taken, loop):
        return None
    inside = source.within(loop, root=taken.root)
    return next((each for each in inside if trains(source, each, model, inside)), None)


RULE = Rule(words=(".state_dict(", "torch"), find=find)

FAILURE = Failure(
    code="CKP001",
    title="The best weights are kept by reference",
    severity=Severity.ERROR,
    doc=__doc__ or "",
    bad="""
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(128, 6)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
best_loss, best_state = float("inf"), None
for epoch in range(10):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x[:96]), y[:96])
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        held_out = nn.functional.mse_loss(model(x[96:]), y[96:]).item()
    if held_out < best_loss and epoch < 6:
        best_loss, best_state = held_out, model.state_dict()
model.load_state_dict(best_state)
""",
    good="""
import copy
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(128, 6)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
best_loss, best_state = float("inf"), None
for epoch in range(10):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x[:96]), y[:96])
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        held_out = nn.functional.mse_loss(model(x[96:]), y[96:]).item()
    if held_out < best_loss and epoch < 6:
        best_loss, best_state = held_out, copy.deepcopy(model.state_dict())
model.load_state_dict(best_state)
""",
    fix="Copy at the moment of the capture: copy.deepcopy(model.state_dict()).",
    rule=RULE,
    detector=Detector,
    inject=changing(Piece.KEEP_BEST, "copy.deepcopy(model.state_dict())", "model.state_dict()"),
)
