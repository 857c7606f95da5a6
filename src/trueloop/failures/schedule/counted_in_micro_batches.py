"""A schedule made for updates is advanced once for each micro-batch.

What you see
    With gradient accumulation over K micro-batches the rate decays, or warms up, K times too fast; the cosine reaches
    its end after 1/K of the training and climbs again, or the run goes on at rate 0.

Why it happens
    ``scheduler.step()`` beside ``loss.backward()`` is an innocent line, and a schedule does not know what it counts.

Fix
    Put ``scheduler.step()`` under the same condition as ``optimizer.step()``, right behind it.

When this is fine
    A schedule whose length is counted in micro-batches too, which is right; schedules without a length; a scheduler
    that is advanced several times per update, once for each process; a GAN whose generator is updated every few
    iterations. Reported is a schedule that is advanced exactly once for each backward of windows of two or more, where
    its length is a whole number of epochs if counted in updates, and not if counted in micro-batches; or where it has
    run past its length, with updates going on, while the updates have not. The text shows it where a length is divided
    by the K of ``if i % K == 0: optimizer.step()``, and the schedule is advanced outside of that condition.

References
    How to adjust learning rate, https://docs.pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate
    Gradient accumulation, https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-accumulation
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from trueloop.analysis.operations import OpKind
from trueloop.analysis.queries.statement_moves import moved_behind
from trueloop.analysis.queries.step_units import lengths, power, turns_of
from trueloop.analysis.source_file import Hit, Source
from trueloop.core.findings import Evidence, CodePosition
from trueloop.core.formatting import format_count
from trueloop.failures import failure
from trueloop.failures.failure import Failure, Rule, Severity
from trueloop.failures.teaching_script import Piece, TeachingLoop
from trueloop.tracing.events import Event, Gap, LoaderStarted, Ref, ScheduleAdvanced, StepTaken

ENDING = frozenset({"CosineAnnealingLR", "OneCycleLR", "PolynomialLR", "SequentialLR", "ChainedScheduler"})


@dataclass(slots=True)
class Counting:
    """How one scheduler is advanced."""

    optimizer: Ref
    first: tuple[int, int]
    """Its count, and the steps of its optimizer, when it was first seen."""
    places: list[int]
    """Backwards before each of its advances since the latest step."""
    windows: int = 0
    """In which it was advanced once for each backward."""
    size: int = 0
    """Backwards in such a window."""
    broken: bool = False
    """It was advanced in another way as well."""
    step_place: CodePosition | None = None


class Detector(failure.Detector):
    """Compares advances with backwards, window by window."""

    subscribes_to: ClassVar[tuple[type[Event], ...]] = (LoaderStarted, ScheduleAdvanced, StepTaken, Gap)

    def __init__(self) -> None:
        self._schedules: weakref.WeakKeyDictionary[Ref, Counting] = weakref.WeakKeyDictionary()
        self._lengths: weakref.WeakKeyDictionary[Ref, int] = weakref.WeakKeyDictionary()
        self._loader: Ref | None = None
        """Of the latest step's batch."""
        self._told: weakref.WeakSet[Ref] = weakref.WeakSet()
        self._since: dict[Ref, int] = {}
        """Optimizer -> backwards before its latest step; emptied by every gap."""

    def observe(self, event: LoaderStarted | ScheduleAdvanced | StepTaken | Gap) -> Evidence | None:
        """Return evidence at an advance."""
        if isinstance(event, StepTaken):
            self._stepped(event)
        elif isinstance(event, LoaderStarted):
            if event.loader not in self._lengths:
                self._lengths[event.loader] = _length(event)
        elif isinstance(event, Gap):
            self._since.clear()
            for counting in self._schedules.values():
                counting.places.clear()
        else:
            return self._advanced(event)
        return None

    def _stepped(self, event: StepTaken) -> None:
        """Judge the window that this step ends, where its beginning was seen."""
        self._loader = event.loader
        began, self._since[event.optimizer] = self._since.get(event.optimizer), event.micro
        for counting in self._schedules.values() if self._schedules else ():
            if counting.optimizer is not event.optimizer:
                continue
            places, counting.places = counting.places, []
            if began is None or event.backwards != event.micro - began:
                continue  # some of the backwards were another optimizer's
            inside = any(began < place < event.micro for place in places)
            if event.backwards > 1 and len(places) == event.backwards and inside:
                counting.windows += 1
                counting.size = max(counting.size, event.backwards)
                counting.step_place = event.place
            elif places:
                counting.broken = True

    def _advanced(self, event: ScheduleAdvanced) -> Evidence | None:
        counting = self._schedules.get(event.scheduler)
        if counting is None:
            counting = Counting(event.optimizer, (event.count, event.optimizer_steps), [])
            self._schedules[event.scheduler] = counting
        if len(counting.places) < 4096:
            counting.places.append(event.micro)
        settled = counting.broken or event.scheduler in self._told or event.kind not in ENDING
        if settled or counting.windows < 2 or event.horizon is None:
            return None
        why = self._made_for_updates(event.horizon, counting.size) or _past(event, counting)
        if not why:
            return None
        self._told.add(event.scheduler)
        return Evidence(
            message=f"{event.kind} is advanced for each micro-batch, {counting.size} times per update; {why}.",
            location=event.place,
            related=((counting.step_place, "the update"),) if counting.step_place else (),
            update=0,
        )

    def _made_for_updates(self, horizon: int, size: int) -> str:
        batches = self._lengths.get(self._loader) if self._loader else None
        if not batches or batches <= size or horizon % batches == 0:
            return ""
        for updates in (batches // size, -(-batches // size)):
            if horizon % updates == 0 and updates > 1:
                epochs = format_count(horizon // updates, "epoch")
                return f"its length, {horizon}, is {epochs} of {updates} updates, not of {batches} micro-batches"
        return ""


def _past(event: ScheduleAdvanced, counting: Counting) -> str:
    """It has run past its end, by a whole window, while the updates are far from it."""
    horizon, (count, steps) = event.horizon or 0, counting.first
    updates = event.optimizer_steps - steps
    if event.count <= horizon + counting.size or updates * 2 > event.count - count + counting.size:
        return ""
    return f"it has run past its length, {horizon}, after {event.optimizer_steps} updates"


def _length(event: LoaderStarted) -> int:
    from torch.utils.data import IterableDataset

    if isinstance(event.live.dataset, IterableDataset):  # being asked, its loader begins to warn of a wrong answer
        return 0
    try:
        return len(event.live)
    except TypeError:  # a sampler without one
        return 0


def find(source: Source) -> Iterator[Hit]:
    """Yield advances in every turn, of a length divided by the K of ``if i % K == 0: optimizer.step()``."""
    for advance in source.acts(OpKind.SCHEDULED):
        scheduler = advance.subject
        if not advance.loops or not advance.always_in(loop := advance.loops[-1]) or not lengths(scheduler):
            continue
        steps = source.within(loop, OpKind.STEPPED, root=advance.root)
        size = turns_of(steps[0], loop) if steps else None
        mine = any(each.may_be(steps[0].subject) for each in (*scheduler.of, *scheduler.options.values()) if size)
        if size is None or not mine or any(turns_of(each, loop) is not size for each in steps):
            continue
        if any(power(each, size) == -1 for each in lengths(scheduler)):
            yield Hit(
                message="The schedule is advanced for each micro-batch, while its length is counted in updates.",
                node=advance.node,
                related=((steps[0].node, "the update"),),
                fix=moved_behind(source, advance, steps[0], "Advance where the optimizer steps"),
            )


RULE = Rule(words=("backward(", ".step(", "%"), find=find)


def inject(loop: TeachingLoop) -> None:
    """Break the teaching loop this way."""
    loop.require(bool(loop.closes), "Nothing is accumulated: each batch is an update.", accumulation=4)
    loop.require(loop.settings["schedule"] != "onecycle", "OneCycleLR raises past its end.", schedule="cosine")
    loop.move(Piece.SCHEDULE, after=Piece.BACKWARD)


FAILURE = Failure(
    code="SCH002",
    title="The schedule is counted in micro-batches",
    severity=Severity.WARNING,
    doc=__doc__ or "",
    bad="""
import warnings
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
torch.manual_seed(0)
x = torch.randn(240, 6)
loader = DataLoader(TensorDataset(x, x.sum(dim=1, keepdim=True)), batch_size=10, shuffle=True)
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
epochs, accumulate = 2, 4
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs * len(loader) // accumulate)
for epoch in range(epochs):
    for i, (inputs, targets) in enumerate(loader):
        (nn.functional.mse_loss(model(inputs), targets) / accumulate).backward()
        if (i + 1) % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
        scheduler.step()
""",
    good="""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(240, 6)
loader = DataLoader(TensorDataset(x, x.sum(dim=1, keepdim=True)), batch_size=10, shuffle=True)
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
epochs, accumulate = 2, 4
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs * len(loader) // accumulate)
for epoch in range(epochs):
    for i, (inputs, targets) in enumerate(loader):
        (nn.functional.mse_loss(model(inputs), targets) / accumulate).backward()
        if (i + 1) % accumulate == 0:
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
""",
    fix="Advance the schedule where the optimizer steps, once for each update.",
    rule=RULE,
    detector=Detector,
    inject=inject,
)
