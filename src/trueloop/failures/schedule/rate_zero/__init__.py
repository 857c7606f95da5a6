"""Updates are made with a learning rate of zero or almost zero.

What you see
    The loss does not change at all in the first epoch, or no longer changes from some epoch on.

Why it happens
    Zero is a valid learning rate. A warm-up that begins at 0 wastes one update if it is stepped once per update, but a
    full epoch if it is stepped once per epoch. An integer division in the warm-up makes this longer. A decay that is
    counted in epochs, such as ``StepLR(step_size=30)``, is almost zero after one epoch if it is stepped per batch.

Fix
    Begin the warm-up above zero and step it once per update. Step a schedule that is counted in epochs once per epoch.

        lambda step: min(1.0, step / warmup)        # wrong: starts at 0
        lambda step: min(1.0, (step + 1) / warmup)  # right

When this is fine
    - Only a single update has a learning rate of zero, where a warm-up begins or a cycle repeats.
    - Only some parameter groups have a learning rate of zero, to freeze them.
    - Another optimizer trains meanwhile.
    - The optimizer has learning rate 0 and no scheduler.
    - The schedule has reached its end (SCH003 reports later updates).
    - A factor per update close to 1, such as 0.9999, or a decay like 1 / t.
    - A decay with a lower limit, under a condition, or from a value that is set again in each epoch.

How it is detected
    In a run, the sanitizer reports two or more updates with a learning rate of zero in all parameter groups, or 16 or
    more updates with at most 1e-12 of the highest learning rate, while no other optimizer trains. At the end of the
    program it reports a schedule that was stepped once per update and for more than half of at least 60 updates had at
    most 1e-4 of its highest learning rate, and a rate that the program itself changes, such as by
    ``group["lr"] *= 0.9`` in each batch, if it was at most 1e-6 of the highest one for more than half of the updates.
    If the rate falls by the same factor in every update, a third of the updates below 1e-4 is enough. The linter
    reports a rate that is multiplied by a constant of at most 0.99 in every iteration of a loop over batches, also by
    an ``ExponentialLR`` or a ``StepLR(step_size=1)``, or by an ``ExponentialLR`` in a method such as ``on_batch_end``,
    or of at most 0.97 for a rate of hand-written updates, such as ``lr *= 0.95`` or ``state.lr = state.lr * gamma``.
    It also reports a current rate that is multiplied by a function of the progress, such as ``group["lr"] *= (1 - step
    / total) ** 0.9`` or ``MultiplicativeLR`` with ``0.9 ** epoch``, which compounds the decay: such a factor belongs to
    the first rate. And it reports a schedule of transformers, such as ``get_linear_schedule_with_warmup``, whose number
    of training steps is written out and not larger than that of its warm-up, such as -1: the rate is 0 after the
    warm-up. Updates that are made only to change BatchNorm statistics are reported too, so this is a warning.

References
    How to adjust learning rate, https://docs.pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate
    Goyal et al., "Accurate, Large Minibatch SGD", section 2.2, 2017, arXiv:1706.02677
"""

import ast
import math
import re
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from trueloop.analysis.queries.layer_arguments import argument_node
from trueloop.analysis.queries.possible_values import known_integer
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.findings import CodePosition, Evidence
from trueloop.core.formatting import format_count
from trueloop.core.source_text import integer
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.failures.schedule.rate_zero.compounding import compounding_decays
from trueloop.failures.schedule.rate_zero.decays_per_batch import (
    decays_in_text,
    schedulers_in_hooks,
    schedulers_per_batch,
)
from trueloop.failures.teaching_script import Piece, TeachingLoop
from trueloop.tracing.events import Ref, SchedulerStepped, StepTaken, WatchEnded
from trueloop.tracing.trackers.schedule_courses import SMALL, ScheduleCourses
from trueloop.tracing.weak_id_dict import WeakIdDict

NEAR_ZERO: Final = 1e-12  # ratio to the highest rate; float32 resolves 1e-7 of a weight
MIN_UPDATES: Final = 60  # number of updates of a run in which the rate was small for more than half of them
MIN_UPDATES_NEAR_ZERO: Final = 16  # number of updates near zero; a normal decay may end with fewer
OWN_SMALL: Final = 1e-6  # ratio to the highest rate, where the program changes it without a scheduler
SAME_SLOPE: Final = 0.05  # relative
MAX_SHARE: Final = 3  # a third of the updates, where each multiplies the rate by the same factor
GEOMETRIC: Final = ("ExponentialLR", "MultiplicativeLR")
_WITH_END: Final = re.compile(r"^get_(linear|cosine|polynomial)\w*_with_warmup$")


@dataclass(slots=True)
class _RatesByHand:
    """The learning rates of the updates of one optimizer."""

    highest: float = 0.0
    first_small: int | None = None
    """The update since which the rate is almost zero; None if it is not."""
    latest: int = 0
    """The latest update that was seen."""
    location: CodePosition | None = None
    rate: float = 0.0
    """The latest rate."""
    slope: float | None = None
    """Logarithm of the factor by which the rate changed per update, first; None = it has not changed yet."""
    is_geometric: bool = True
    """Whether the rate fell by the same factor in every update."""
    first_below: int | None = None
    """The update since which the rate is below 1e-4 of the highest one; None if it is not."""

    def add(self, update: int, rate: float) -> None:
        """Add the rate of one update."""
        self.highest = max(self.highest, rate)
        self.first_small = None if rate > OWN_SMALL * self.highest else self.first_small or update
        self.first_below = None if rate > SMALL * self.highest else self.first_below or update
        if self.rate > 0 and rate > 0 and update > self.latest:
            slope = math.log(rate / self.rate) / (update - self.latest)
            self.slope = slope if self.slope is None else self.slope
            self.is_geometric &= slope < 0 and math.isclose(slope, self.slope, rel_tol=SAME_SLOPE)
        self.latest, self.rate = update, rate

    def wasted_updates(self) -> int:
        """Return the number of updates at the end with a rate of almost zero; 0 if it is within what is usual."""
        small = self.latest - (self.latest if self.first_small is None else self.first_small)
        below = self.latest - (self.latest if self.first_below is None else self.first_below)
        if self.is_geometric and MAX_SHARE * below > self.latest:
            return below
        return small if 2 * small > self.latest else 0


class Detector(BaseDetector):
    """Counts the updates between scheduler steps during which all rates were close to zero."""

    courses: ScheduleCourses

    def __init__(self) -> None:
        self._last: weakref.WeakKeyDictionary[Ref, tuple[int, int]] = weakref.WeakKeyDictionary()
        """Numbers of scheduler steps and of updates at each scheduler's latest step."""
        self._latest: weakref.WeakKeyDictionary[Ref, weakref.ref[Ref]] = weakref.WeakKeyDictionary()
        """Optimizer -> the scheduler that stepped last; a schedule that ends at zero may hand over to another."""
        self._zero: weakref.WeakKeyDictionary[Ref, int] = weakref.WeakKeyDictionary()
        """Number of successive updates of each scheduler's optimizer with a rate of almost zero."""
        self._highest: weakref.WeakKeyDictionary[Ref, float] = weakref.WeakKeyDictionary()
        """The highest rate of each scheduler so far."""
        self._training = WeakIdDict[Ref, bool]()
        """Whether the latest update of each optimizer had a rate above zero."""
        self._reported: weakref.WeakSet[Ref] = weakref.WeakSet()
        self._by_hand: weakref.WeakKeyDictionary[Ref, _RatesByHand] = weakref.WeakKeyDictionary()

    def on_scheduler_stepped(self, event: SchedulerStepped) -> Evidence | None:
        """Return evidence at the scheduler step after the second update with a rate of zero."""
        previous = self._last.get(event.scheduler)
        self._last[event.scheduler] = (event.last_epoch, event.optimizer_steps)
        latest = self._latest.get(event.optimizer)
        handed_over = latest is not None and latest() is not event.scheduler
        self._latest[event.optimizer] = weakref.ref(event.scheduler)
        rate = max(map(abs, event.rates_before), default=0.0)
        self._highest[event.scheduler] = highest = max(rate, self._highest.get(event.scheduler, 0.0))
        at_zero = bool(event.rates_before) and rate <= NEAR_ZERO * highest
        ended = event.planned_steps is not None and event.last_epoch > event.planned_steps
        if not at_zero or ended or self._do_others_train(event.optimizer):
            self._zero[event.scheduler] = 0
            return None
        updates = 0 if handed_over else _count_updates_between(previous, event)
        self._zero[event.scheduler] = zero = self._zero.get(event.scheduler, 0) + updates
        if zero < (MIN_UPDATES_NEAR_ZERO if rate else 2) or event.scheduler in self._reported:
            return None
        self._reported.add(event.scheduler)
        which = "The first " if event.optimizer_steps == zero else "The latest " if not rate else ""
        value = f"less than {NEAR_ZERO * highest:.2g}, where it was {highest:.2g} before" if rate else "0"
        return Evidence(
            message=f"{which}{format_count(zero, 'update')} with this {event.kind} had a learning rate of {value}, so "
            "the model learned nothing.",
            location=event.location,
            first_update=max(0, event.update - zero),
        )

    def on_step_taken(self, event: StepTaken) -> None:
        """Record the step."""
        if event.learning_rates:
            rate, own = max(event.learning_rates), self._by_hand.get(event.optimizer) or _RatesByHand()
            self._by_hand[event.optimizer] = own
            own.add(event.update, rate)
            own.location = event.location
            training = any(event.learning_rates)
            if self._training.get(event.optimizer) is not training:
                self._training.put(event.optimizer, training)

    def on_watch_ended(self, event: WatchEnded) -> Iterator[Evidence]:
        """Return evidence for each schedule that decayed to almost nothing before the middle of the run."""
        for scheduler, course in self.courses.by_scheduler.items():
            small, updates = course.small_updates, course.updates
            parts = MAX_SHARE if course.kind in GEOMETRIC else 2
            if scheduler in self._reported or not course.is_per_update or updates < MIN_UPDATES:
                continue
            if parts * small <= updates:
                continue
            yield Evidence(
                message=f"{course.kind} is stepped once per update: the latest {small} of {updates} updates had a "
                f"learning rate of at most {SMALL * course.highest:.2g}, where it was {course.highest:.2g} before, so "
                "the model learned next to nothing in them.",
                location=course.location,
                first_update=updates - small,
            )
        for optimizer, own in self._by_hand.items():
            small = own.wasted_updates()
            if optimizer not in self._latest and own.latest >= MIN_UPDATES and small:
                limit = (SMALL if own.is_geometric else OWN_SMALL) * own.highest
                yield Evidence(
                    message=f"The program itself lowers the learning rate of {optimizer.kind}: the latest {small} of "
                    f"{own.latest} updates had at most {limit:.2g}, where it was {own.highest:.2g} before, so the "
                    "model learned next to nothing in them.",
                    location=own.location,
                    first_update=own.latest - small,
                )

    def _do_others_train(self, optimizer: Ref) -> bool:
        return any(training and other is not optimizer for other, training in self._training.items())


def _count_updates_between(previous: tuple[int, int] | None, event: SchedulerStepped) -> int:
    """Return the number of updates since the previous scheduler step, if it was observed, or since the start."""
    if previous is None:
        return event.optimizer_steps if event.last_epoch == 1 else 0
    count, steps = previous
    return event.optimizer_steps - steps if event.last_epoch == count + 1 else 0


_OF_OPTIMIZER: Final = re.compile(r"param_groups|ExponentialLR|StepLR|MultiplicativeLR|_with_warmup\(")


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each statement or scheduler that lowers the rate by a constant factor after every batch."""
    decays = [(statement, factor, ()) for statement, factor in decays_in_text(source)]
    is_scheduled = source.mentions(_OF_OPTIMIZER)
    schedules = schedulers_per_batch(source) if is_scheduled else ()
    decays += [(node, factor, ((built.node, "the scheduler"),)) for node, built, factor in schedules]
    in_hooks = schedulers_in_hooks(source) if is_scheduled else ()
    decays += [(node, factor, ((built, "the scheduler"),)) for node, built, factor in in_hooks]
    for node, factor, related in decays:
        yield Hit(
            message=f"`{ast.unparse(node)}` multiplies the learning rate by {factor:g} after every batch, so it is "
            f"1e-4 of the first one after {_batches(factor)} batches.",
            node=node,
            related=related,
        )

    for node, factor in compounding_decays(source) if is_scheduled else ():
        yield Hit(
            message=f"`{ast.unparse(factor)}` is the decay since the start, but the current rate is multiplied by it "
            "each time, so the decays compound and the rate is soon zero. Multiply the first rate instead.",
            node=node,
        )
    for call in source.all_calls:
        length = argument_node(call, "num_training_steps", 2) if _WITH_END.match(last_name(call.func)) else None
        total = known_integer(source, length) if length is not None else None
        is_counted = total is not None and total <= 0 and integer(length) is None  # a variable may still be increased
        warm_up = argument_node(call, "num_warmup_steps", 1)
        first = known_integer(source, warm_up) if warm_up is not None else None
        if total is not None and total <= max(first or 0, 0) and not is_counted:
            yield Hit(
                message=f"The schedule ends after {total} steps, so the learning rate is 0 as soon as the warm-up is "
                "over: `num_training_steps` is the number of all updates.",
                node=call,
            )


def _batches(factor: float) -> int:
    return math.ceil(math.log(SMALL) / math.log(factor))


RULE: Final = Rule(required_words=("lr|LR|rate|eta|step_size|param_groups|_with_warmup(", "backward(|grad("), find=find)


def inject(loop: TeachingLoop) -> None:
    """Inject this failure into the teaching loop."""
    loop.require(loop.settings["schedule"] == "warmup", "There is no warm-up.", schedule="warmup")
    loop.replace(Piece.SCHEDULER, "(update + 1) / warm_up", "(update + 1) // warm_up")


BAD = """
import torch
from torch import nn

torch.manual_seed(0)
inputs = torch.randn(120, 6)
targets = inputs.sum(dim=1, keepdim=True)
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
decay = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.9)
for epoch in range(25):
    for batch in range(0, 120, 15):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs[batch:batch + 15]), targets[batch:batch + 15])
        loss.backward()
        optimizer.step()
        decay.step()
    print(epoch, optimizer.param_groups[0]["lr"], loss.item())
"""

FAILURE = Failure(
    code="SCH004",
    title="Learning rate is zero",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"        decay.step()\n": "", "    print(epoch": "    decay.step()\n    print(epoch"}),
    fix="Start the warm-up above zero and step it once per update; step a decay counted in epochs once per epoch.",
    rule=RULE,
    detector=Detector,
    inject=inject,
)
