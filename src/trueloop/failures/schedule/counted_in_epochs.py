"""A schedule whose length is counted in batches or updates is advanced once for each epoch.

What you see
    A one-cycle schedule never leaves its warm-up, and a cosine hardly moves: of its length as much was gone through at
    the end as there are epochs in it. Training goes on at a rate that nobody has chosen.

Why it happens
    A schedule does not know what it is advanced for. ``OneCycleLR`` refuses to be advanced beyond its end; nothing
    minds one that stays far before it.

Fix
    Advance the schedule right behind ``optimizer.step()``; or count its length in epochs.

When this is fine
    ``T_max=epochs`` with a step per epoch; ``steps_per_epoch=1``; ``T_max=epochs * len(loader)`` with a step per batch;
    a length in epochs that was planned for a longer run. Reported is a ``OneCycleLR`` that was told how many steps an
    epoch has, two or more, and that is advanced once for each pass over data of just as many updates or batches, twice
    in a row. In the text it shows where a length has ``len(loader)`` as a factor, and the schedule is advanced in the
    loop around the one over that loader and not in it.

References
    OneCycleLR, https://docs.pytorch.org/docs/stable/generated/torch.optim.lr_scheduler.OneCycleLR.html
    pytorch/pytorch#65417, "OneCycleLR updating on epoch rather than on step",
    https://github.com/pytorch/pytorch/issues/65417
    ageron/handson-mlp#28, "OneCycleLR scheduler should be called after every batch", in a book's notebook,
    https://github.com/ageron/handson-mlp/issues/28
    sthalles/SimCLR#8: with ``T_max=len(train_loader)`` and a step per epoch "lr will never change",
    https://github.com/sthalles/SimCLR/issues/8
"""

from __future__ import annotations

import ast
import weakref
from collections.abc import Iterator
from typing import ClassVar, NamedTuple

from trueloop.analysis.abstract_value import MANAGED, AbstractValue, Kind
from trueloop.analysis.loop_invariance import over_loader
from trueloop.analysis.operations import Loop, Op, OpKind
from trueloop.analysis.queries.statement_moves import moved_within
from trueloop.analysis.queries.step_units import lengths, power
from trueloop.analysis.source_file import Hit, Source
from trueloop.core.findings import Evidence
from trueloop.failures import failure
from trueloop.failures.failure import Failure, Rule, Severity
from trueloop.tracing.events import Event, LoaderExhausted, Ref, ScheduleAdvanced


class Advance(NamedTuple):
    """One advance of a schedule, and what had happened by then."""

    number: int
    steps: int
    micro: int
    passes: int
    epochs: int
    """In a row, up to this one, that it was advanced for once each."""


class Detector(failure.Detector):
    """Compares what lies between two advances with the epoch that the schedule was told of."""

    subscribes_to: ClassVar[tuple[type[Event], ...]] = (LoaderExhausted, ScheduleAdvanced)

    def __init__(self) -> None:
        self._passes = 0
        """Over data, that trained."""
        self._last: weakref.WeakKeyDictionary[Ref, Advance] = weakref.WeakKeyDictionary()
        self._told: weakref.WeakSet[Ref] = weakref.WeakSet()

    def observe(self, event: LoaderExhausted | ScheduleAdvanced) -> Evidence | None:
        """Return evidence at the advance behind the second such epoch."""
        if isinstance(event, LoaderExhausted):
            self._passes += event.batches_with_backward > 0
            return None
        per_epoch = event.per_epoch or 0
        if per_epoch < 2 or event.scheduler in self._told:
            return None
        before = self._last.get(event.scheduler, Advance(0, 0, 0, 0, 0))
        steps, batches = event.optimizer_steps - before.steps, event.micro - before.micro
        whole = event.count == before.number + 1 and self._passes > before.passes
        epoch = whole and steps > 1 and per_epoch in (steps, batches)
        epochs = before.epochs + 1 if epoch else 0
        self._last[event.scheduler] = Advance(event.count, event.optimizer_steps, event.micro, self._passes, epochs)
        if epochs < 2:
            return None
        self._told.add(event.scheduler)
        return Evidence(
            message=f"{event.kind} was made for {event.horizon} advances, {per_epoch} in each epoch, and is advanced "
            f"once per epoch: after {event.count} epochs it is {event.count} of {event.horizon} on its way.",
            location=event.place,
            update=0,
        )


def find(source: Source) -> Iterator[Hit]:
    """Yield advances around a loop over the loader whose length is a factor of the schedule's."""
    for advance in source.acts(OpKind.SCHEDULED):
        scheduler = advance.subject
        known = scheduler.kind is Kind.SCHEDULER and bool(scheduler.of) and MANAGED not in scheduler.facts
        if not known or not advance.loops or advance.things or over_loader(advance.loops[-1]) is not None:
            continue
        steps = _steps(source, advance)
        loaders = [_inner(each, advance.loops[-1]) for each in steps]
        if steps and all(_counts(scheduler, each) for each in loaders):
            yield Hit(
                message="The schedule is advanced once per epoch, while its length is counted in batches or updates.",
                node=advance.node,
                related=((steps[-1].node, "the update"), (scheduler.node, "its length")),
                fix=moved_within(source, advance, steps[-1], "Advance where the optimizer steps"),
            )


def _steps(source: Source, advance: Op) -> list[Op]:
    """Return the updates in the loop that advances the schedule; none where it is advanced beside them as well."""
    loop, scheduler = advance.loops[-1], advance.subject
    inside = source.within(loop, OpKind.STEPPED, OpKind.SCHEDULED, root=advance.root)
    mine = [each for each in inside if each.act is OpKind.STEPPED and each.subject.may_be(scheduler.of[0])]
    other = [each for each in inside if each.act is OpKind.SCHEDULED and each.subject.may_be(scheduler)]
    return mine if all(each.loops[-1].node is loop.node for each in other) else []


def _inner(step: Op, loop: Loop) -> AbstractValue | None:
    """Return the loader of the one loop that stands between a loop and an update in it."""
    inner = step.loops[[each.node for each in step.loops].index(loop.node) + 1 :]
    return over_loader(inner[0]) if len(inner) == 1 else None


def _counts(scheduler: AbstractValue, loader: AbstractValue | None) -> bool:
    """Return True where a length of the schedule is the loader's length times something."""
    for number in lengths(scheduler) if loader is not None else ():
        powers = [power(number, each) for each in number.lineage() if _is_length(each, loader)]
        if 1 in powers and all(each in (0, 1) for each in powers):
            return True
    return False


def _is_length(number: AbstractValue, loader: AbstractValue | None) -> bool:
    call = number.node
    plain = isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "len"
    return plain and loader is not None and any(each.may_be(loader) for each in number.of)


RULE = Rule(words=("len(", "backward(", ".step(", "LR|get_"), find=find)

FAILURE = Failure(
    code="SCH007",
    title="The schedule is counted in epochs",
    severity=Severity.WARNING,
    doc=__doc__ or "",
    bad="""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(160, 8)
loader = DataLoader(TensorDataset(x, x.sum(dim=1, keepdim=True)), batch_size=16, shuffle=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
epochs = 4
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, epochs=epochs, steps_per_epoch=len(loader))
for epoch in range(epochs):
    for inputs, targets in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    scheduler.step()
    print(epoch, scheduler.get_last_lr())
""",
    good="""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(160, 8)
loader = DataLoader(TensorDataset(x, x.sum(dim=1, keepdim=True)), batch_size=16, shuffle=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
epochs = 4
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, epochs=epochs, steps_per_epoch=len(loader))
for epoch in range(epochs):
    for inputs, targets in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
        scheduler.step()
    print(epoch, scheduler.get_last_lr())
""",
    fix="Advance the schedule behind each optimizer.step(), or count its length in epochs.",
    rule=RULE,
    detector=Detector,
)
