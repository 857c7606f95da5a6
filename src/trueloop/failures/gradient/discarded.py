"""Gradients are cleared between ``backward()`` and ``optimizer.step()``, so no step uses them.

What you see
    The loss does not change at all; or, with accumulation, training behaves as with a batch several times smaller.

Why it happens
    A step on parameters without gradients silently does nothing, and gradients may be cleared at any time.

Fix
    Clear after the step, or before the first backward of the window; never between a backward and its step.

        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

When this is fine
    - A batch that is skipped because its loss or gradients are not finite.
    - A gradient probe, SAM, PCGrad, per-sample gradients, and the generator's pass through a GAN's discriminator.
    - Gradients that are stored elsewhere and written to ``.grad`` by hand (PCGrad, differential privacy).

How it is detected
    At run time there are two cases. One: no step so far found a gradient, though backward passes had reached its
    parameters, at least twice. Two: in each of 5 windows, and there were no others, one line ran backward on as many
    different batches, one line cleared the gradients of each batch except the last, and only that one was used.
    Gradients that did not come from the latest backward are not reported. Lint finds both: a clearing of everything
    that is stepped right after it; and one in every iteration of a loop whose steps all wait for a counter.

References
    PyTorch tutorial "Optimizing Model Parameters", https://docs.pytorch.org/tutorials/beginner/basics/optimization_tutorial.html
    torch.optim.Optimizer.zero_grad, https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.zero_grad.html
"""

import ast
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

from trueloop.analysis.abstract_value import MANAGED, ValueKind
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.queries.accumulation_windows import accesses_grad, accumulation_window
from trueloop.analysis.queries.statement_moves import move_after_fix
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import CodePosition, Evidence
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.failures.teaching_script import Piece, TeachingLoop
from trueloop.tracing.events import BackwardEnded, GradientsCleared, Ref, StepTaken, TracingGap
from trueloop.tracing.weak_id_dict import WeakIdDict

MIN_WINDOWS = 5  # all windows so far, with the same pattern: batches skipped because of their loss are less regular
MAX_DISCARDED = 4096  # backwards in a row that are remembered; a loop without an optimizer never steps


class _Discarded(NamedTuple):
    """One backward whose gradients were cleared before any of them was used."""

    backward: CodePosition | None
    clearing: CodePosition | None
    batch: int


class Detector(BaseDetector):
    """Follows each backward to the step that uses its gradients, or to the clearing that discards them."""

    subscribes_to = (BackwardEnded, GradientsCleared, StepTaken, TracingGap)

    def __init__(self) -> None:
        self._effective = WeakIdDict[Ref, bool]()  # optimizers that found gradients
        self._empty: weakref.WeakKeyDictionary[Ref, int] = weakref.WeakKeyDictionary()
        self._unused: tuple[Any, int] | None = None  # line and batch of the latest backward until used or cleared
        self._discarded: list[_Discarded] = []
        self._pattern: tuple[int, CodePosition | None, CodePosition | None] | None = None
        self._equal_windows = 0
        self._irregular = False

    def observe(self, event: BackwardEnded | GradientsCleared | StepTaken | TracingGap) -> Evidence | None:
        """Return evidence at a step."""
        if isinstance(event, StepTaken):
            return self._step(event)
        if isinstance(event, BackwardEnded):
            self._unused = (event.location, event.batch) if event.reached_parameters else self._unused
        elif isinstance(event, GradientsCleared):
            if event.unused and self._unused is not None and len(self._discarded) < MAX_DISCARDED:
                self._discarded.append(_Discarded(self._unused[0], event.location, self._unused[1]))
                self._unused = None
        else:
            self._unused, self._discarded, self._equal_windows, self._pattern = None, [], 0, None
        return None

    def _step(self, event: StepTaken) -> Evidence | None:
        discarded, self._discarded = self._discarded, []
        last, self._unused = self._unused, None
        if event.with_gradient:
            if not self._effective.get(event.optimizer):
                self._effective.put(event.optimizer, True)
        elif event.cleared_between and not self._effective.get(event.optimizer):
            self._empty[event.optimizer] = times = self._empty.get(event.optimizer, 0) + 1
            return self._never_a_gradient(event, times) if times > 1 else None
        if discarded:
            return self._discarded_in_each_window(event, discarded, last)
        self._equal_windows, self._irregular, self._pattern = 1, True, None  # the usual case
        return None

    def _never_a_gradient(self, event: StepTaken, times: int) -> Evidence:
        return Evidence(
            message=f"None of the {times} steps of {event.optimizer.name} found a gradient: all gradients were cleared "
            "between `backward()` and the step each time, so nothing was trained.",
            location=event.cleared_at or event.location,
            related=((event.location, "this step found no gradients"),) if event.location else (),
            first_update=0,
        )

    def _discarded_in_each_window(
        self, event: StepTaken, discarded: list[_Discarded], last: tuple[Any, int] | None
    ) -> Evidence | None:
        """Return evidence if every window so far cleared the gradients of all its batches except the last."""
        lines = {(each.backward, each.clearing) for each in discarded}
        batches = {each.batch for each in discarded} | {last[1] if last else -1}
        pattern = None
        if (
            last
            and not event.gradients_replaced
            and len(discarded) < MAX_DISCARDED
            and len(lines) == 1
            and len(batches) == len(discarded) + 1
            and discarded[0].backward == last[0]
        ):
            pattern = (len(discarded), *next(iter(lines)))
        self._equal_windows = self._equal_windows + 1 if pattern and pattern == self._pattern else 1
        self._irregular |= pattern is None or (self._pattern is not None and pattern != self._pattern)
        self._pattern = pattern
        if pattern is None or self._equal_windows < MIN_WINDOWS or self._irregular:
            return None
        count, backward, clearing = pattern
        return Evidence(
            message=f"In each of {self._equal_windows} windows the gradients of {count} of {count + 1} batches were "
            f"cleared before `{event.optimizer.name}.step()`: only the last batch was trained on.",
            location=clearing,
            related=tuple(
                (place, words) for place, words in ((backward, "the backward"), (event.location, "the step")) if place
            ),
        )


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each clearing between every backward of a loop and its step."""
    for step in source.ops(OpKind.STEP):
        if step.subject.kind is not ValueKind.OPTIMIZER or not step.loops:
            continue
        inside = source.ops_in_loop(step.loops[-1], root=step.entry_point)
        reaching = [each for each in inside if each.kind is OpKind.BACKWARD and source.reaches(each, step.subject)]
        cleared = _just_before(source, step)
        if cleared is not None:
            again = sum(each.kind is OpKind.STEP and each.subject.may_alias(step.subject) for each in inside) > 1
            when = "clears the gradients right before the step, which finds none."
        else:
            cleared, again = _in_every_iteration(source, step, inside), False
            when = "clears the gradients in every iteration, but the step runs only in some of them."
        if cleared is not None and reaching and not again:
            yield Hit(
                message=f"`{ast.unparse(cleared.node)}` {when}",
                node=cleared.node,
                related=((reaching[0].node, "the backward"), (step.node, "the step")),
                fix=move_after_fix(
                    source, cleared, step, "Clear after the step", safe=cleared.branches == step.branches
                ),
            )


def _just_before(source: SourceFile, step: Op) -> Op | None:
    """Return the clearing before a step, if nothing between them can create a gradient."""
    run = source.ops_of_run(step)
    for each in reversed(run[: run.index(step)]):
        match each.kind:
            case OpKind.CLEAR_GRADIENTS if (
                source.clears_all(each, step.subject) and each.same_iteration_as(step) and each.implied_by(step)
            ):
                return each
            case OpKind.CLEAR_GRADIENTS | OpKind.BACKWARD | OpKind.ACCESS_GRADIENTS | OpKind.ESCAPE | OpKind.STEP:
                return None
            case _:
                pass
    return None


def _in_every_iteration(source: SourceFile, step: Op, inside: list[Op]) -> Op | None:
    """Return the clearing in every iteration of a loop whose steps, unlike its backwards, wait for a window's end."""
    loop = step.loops[-1]
    found = accumulation_window(step, loop)
    if found is None or found.iterations == 1 or MANAGED in step.subject.facts or accesses_grad(source):
        return None
    ends = {(id(found.branch.node), found.branch.arm)}
    for each in inside:
        here = {(id(branch.node), branch.arm) for branch in each.branches}
        if (each.kind is OpKind.STEP and not ends <= here) or (
            each.kind is OpKind.BACKWARD and not each.is_unconditional_in(loop)
        ):
            return None
    if source.escapes(step.subject, inside) or any(each.kind is OpKind.ACCESS_GRADIENTS for each in inside):
        return None
    clearings = [
        each
        for each in inside
        if each.kind is OpKind.CLEAR_GRADIENTS and each.same_iteration_as(step) and each.is_unconditional_in(loop)
    ]
    return next((each for each in clearings if source.clears_all(each, step.subject)), None)


RULE = Rule(required_words=("backward(", ".step(", "zero_grad("), find=find)


def inject(loop: TeachingLoop) -> None:
    """Break the teaching loop this way."""
    loop.require(loop.settings["precision"] != "float16", "A GradScaler needs a gradient.", precision="float32")
    loop.move(Piece.ZERO_GRAD, before=Piece.OPTIMIZER_STEP)


BAD = """
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
"""

FAILURE = Failure(
    code="GRD002",
    title="Gradients are cleared before the step",
    severity=Severity.ERROR,
    bad=BAD,
    good=changed(
        BAD, {"    optimizer.zero_grad()\n    optimizer.step()": "    optimizer.step()\n    optimizer.zero_grad()"}
    ),
    fix="Clear after the step, or before the first backward of the window, never between backward and step.",
    rule=RULE,
    detector=Detector,
    inject=inject,
)
