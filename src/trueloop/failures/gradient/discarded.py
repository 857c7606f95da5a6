"""Gradients are cleared before a step could use them.

What you see
    The loss does not move at all; or, with accumulation, training behaves as with a batch several times smaller.

Why it happens
    A step over parameters without gradients does nothing, silently. And clearing is always allowed.

Fix
    Put ``optimizer.zero_grad()`` after the step, or before the first backward of the window; never between a backward
    and the step that is to use it.

When this is fine
    A skipped batch that was not finite, a gradient probe, SAM, PCGrad, per-sample gradients and the generator's pass
    through a GAN's discriminator all clear gradients that no step has used, on purpose. So it is told in two cases.
    One: every step so far found no gradient, though backwards had reached its parameters, at least twice. Two: in
    each of five windows, and no others, the same line ran backward on as many different batches, the same line
    cleared each of them but the last, and only that one was stepped. Gradients that are kept elsewhere and put into
    ``.grad`` by hand (PCGrad, differential privacy) are not of this kind: what is stepped is not what a backward
    left. The text alone tells both: a clearing of all that is stepped right behind it; and one in every turn of a
    loop whose steps, all of them, wait for a counter.

References
    PyTorch tutorial "Optimizing Model Parameters", https://docs.pytorch.org/tutorials/beginner/basics/optimization_tutorial.html
    torch.optim.Optimizer.zero_grad, https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.zero_grad.html
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

from trueloop.analysis.abstract_value import MANAGED, Kind
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.queries.accumulation_windows import by_hand, window
from trueloop.analysis.queries.statement_moves import moved_behind
from trueloop.analysis.source_file import Hit, Source
from trueloop.core.findings import Evidence, CodePosition
from trueloop.failures import failure
from trueloop.failures.failure import Failure, Rule, Severity
from trueloop.failures.teaching_script import Piece, TeachingLoop
from trueloop.tracing.events import BackwardEnded, Event, Gap, GradientsCleared, Ref, StepTaken
from trueloop.tracing.object_facts import Facts

WINDOWS = 5  # all there were, each alike: batches that are skipped by their loss are not so regular
MOST_LOST = 4096  # backwards in a row that are remembered; a loop without an optimizer never steps


class _Lost(NamedTuple):
    """One backward whose gradients were cleared with nothing of them used."""

    backward: CodePosition | None
    clearing: CodePosition | None
    batch: int


class Detector(failure.Detector):
    """Follows each backward to the step that uses its gradients, or to the clearing that drops them."""

    subscribes_to: ClassVar[tuple[type[Event], ...]] = (BackwardEnded, GradientsCleared, StepTaken, Gap)

    def __init__(self) -> None:
        self._effective = Facts[Ref, bool]()  # optimizers that found gradients
        self._empty: weakref.WeakKeyDictionary[Ref, int] = weakref.WeakKeyDictionary()
        self._open: tuple[Any, int] | None = None  # place and batch of the latest backward, until used or cleared
        self._lost: list[_Lost] = []
        self._pattern: tuple[int, CodePosition | None, CodePosition | None] | None = None
        self._alike = 0
        self._irregular = False

    def observe(self, event: BackwardEnded | GradientsCleared | StepTaken | Gap) -> Evidence | None:
        """Return evidence at a step."""
        if isinstance(event, StepTaken):
            return self._step(event)
        if isinstance(event, BackwardEnded):
            self._open = (event.place, event.batch) if event.received else self._open
        elif isinstance(event, GradientsCleared):
            if event.unconsumed and self._open is not None and len(self._lost) < MOST_LOST:
                self._lost.append(_Lost(self._open[0], event.place, self._open[1]))
                self._open = None
        else:
            self._open, self._lost, self._alike, self._pattern = None, [], 0, None
        return None

    def _step(self, event: StepTaken) -> Evidence | None:
        lost, self._lost = self._lost, []
        last, self._open = self._open, None
        if event.with_gradient:
            if not self._effective.get(event.optimizer):
                self._effective.put(event.optimizer, True)
        elif event.cleared_between and not self._effective.get(event.optimizer):
            self._empty[event.optimizer] = times = self._empty.get(event.optimizer, 0) + 1
            return self._nothing_left(event, times) if times > 1 else None
        if lost:
            return self._most_are_lost(event, lost, last)
        self._alike, self._irregular, self._pattern = 1, True, None  # the usual case
        return None

    def _nothing_left(self, event: StepTaken, times: int) -> Evidence:
        return Evidence(
            message=f"None of the {times} steps of {event.optimizer.name} found a gradient: they were cleared between "
            "backward and step each time, so that nothing was ever trained.",
            location=event.cleared_at or event.place,
            related=((event.place, "stepped here, without gradients"),) if event.place else (),
            update=0,
        )

    def _most_are_lost(self, event: StepTaken, lost: list[_Lost], last: tuple[Any, int] | None) -> Evidence | None:
        """Micro-batches of a window that were cleared one by one, but for the last, in every window so far."""
        lines = {(each.backward, each.clearing) for each in lost}
        batches = {each.batch for each in lost} | {last[1] if last else -1}
        pattern = None
        if (
            last
            and not event.replaced
            and len(lost) < MOST_LOST
            and len(lines) == 1
            and len(batches) == len(lost) + 1
            and lost[0].backward == last[0]
        ):
            pattern = (len(lost), *next(iter(lines)))
        self._alike = self._alike + 1 if pattern and pattern == self._pattern else 1
        self._irregular |= pattern is None or (self._pattern is not None and pattern != self._pattern)
        self._pattern = pattern
        if pattern is None or self._alike < WINDOWS or self._irregular:
            return None
        count, backward, clearing = pattern
        return Evidence(
            message=f"In each of {self._alike} windows the gradients of {count} of {count + 1} batches were cleared "
            f"before {event.optimizer.name} stepped: only the last batch was trained on.",
            location=clearing,
            related=tuple(
                (place, words) for place, words in ((backward, "made here"), (event.place, "stepped here")) if place
            ),
        )


def find(source: Source) -> Iterator[Hit]:
    """Yield each clearing that stands between every backward of a loop and its step."""
    for step in source.acts(OpKind.STEPPED):
        if step.subject.kind is not Kind.OPTIMIZER or not step.loops:
            continue
        inside = source.within(step.loops[-1], root=step.root)
        reaching = [each for each in inside if each.act is OpKind.BACKWARD and source.reaches(each, step.subject)]
        cleared = _just_before(source, step)
        if cleared is not None:
            again = sum(each.act is OpKind.STEPPED and each.subject.may_be(step.subject) for each in inside) > 1
            words = "The gradients are cleared right before the step, which finds none of them."
        else:
            cleared, again = _in_every_turn(source, step, inside), False
            words = "The gradients are cleared in every turn of the loop, but the step comes in some turns only."
        if cleared is not None and reaching and not again:
            yield Hit(
                message=words,
                node=cleared.node,
                related=((reaching[0].node, "made here"), (step.node, "to be used here")),
                fix=moved_behind(
                    source, cleared, step, "Clear behind the step", safe=cleared.branches == step.branches
                ),
            )


def _just_before(source: Source, step: Op) -> Op | None:
    """Return the clearing in front of a step, with nothing between that could make a gradient."""
    run = source.run_of(step)
    for each in reversed(run[: run.index(step)]):
        match each.act:
            case OpKind.CLEARED if (
                source.clears_all(each, step.subject) and each.beside(step) and each.implied_by(step)
            ):
                return each
            case OpKind.CLEARED | OpKind.BACKWARD | OpKind.GRADIENTS | OpKind.ESCAPED | OpKind.STEPPED:
                return None
            case _:
                pass
    return None


def _in_every_turn(source: Source, step: Op, inside: list[Op]) -> Op | None:
    """Return the clearing in every turn of a loop in which all steps wait for the end of a window, no backward does."""
    loop = step.loops[-1]
    found = window(step, loop)
    if found is None or found.turns == 1 or MANAGED in step.subject.facts or by_hand(source):
        return None
    ends = {(id(found.branch.node), found.branch.arm)}
    for each in inside:
        here = {(id(branch.node), branch.arm) for branch in each.branches}
        if (each.act is OpKind.STEPPED and not ends <= here) or (
            each.act is OpKind.BACKWARD and not each.always_in(loop)
        ):
            return None
    if source.handed_out(step.subject, inside) or any(each.act is OpKind.GRADIENTS for each in inside):
        return None
    clearings = [each for each in inside if each.act is OpKind.CLEARED and each.beside(step) and each.always_in(loop)]
    return next((each for each in clearings if source.clears_all(each, step.subject)), None)


RULE = Rule(words=("backward(", ".step(", "zero_grad("), find=find)


def inject(loop: TeachingLoop) -> None:
    """Break the teaching loop this way."""
    loop.require(loop.settings["precision"] != "float16", "A GradScaler wants a gradient.", precision="float32")
    loop.move(Piece.CLEAR, before=Piece.UPDATE)


FAILURE = Failure(
    code="GRD002",
    title="Gradients are cleared before they are used",
    severity=Severity.ERROR,
    doc=__doc__ or "",
    bad="""
import torch
from torch import nn

x = torch.randn(256, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(20):
    rows = torch.randint(256, (32,))
    loss = nn.functional.mse_loss(model(x[rows]), y[rows])
    loss.backward()
    optimizer.zero_grad()
    optimizer.step()
""",
    good="""
import torch
from torch import nn

x = torch.randn(256, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(20):
    rows = torch.randint(256, (32,))
    loss = nn.functional.mse_loss(model(x[rows]), y[rows])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    fix="Clear after the step, or before the first backward of the window, never between backward and step.",
    rule=RULE,
    detector=Detector,
    inject=inject,
)
