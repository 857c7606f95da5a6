"""Gradients are cleared between ``backward()`` and ``optimizer.step()``, so no step uses them.

What you see
    The loss does not change at all. Or, with gradient accumulation, training behaves as with only the last batch.

Why it happens
    ``zero_grad()`` after ``backward()`` deletes the new gradients, and a step without gradients silently does nothing.

Fix
    Clear the gradients after the step or before the first ``backward()``, never between ``backward()`` and its step.

        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

When this is fine
    - You skip a batch because its loss or its gradients are not finite.
    - You only measure gradients, or use SAM, PCGrad or per-sample gradients.
    - In a GAN, you clear the gradients that the generator's pass leaves in the discriminator.
    - You store the gradients elsewhere and write them to ``.grad`` by hand (PCGrad, differential privacy).

How it is detected
    In a run, the sanitizer reports two cases. (1) No step of an optimizer found a gradient, although backward passes
    had computed gradients of its parameters at least twice. (2) In each of the first 5 updates, one line ran
    ``backward()`` on the same number of batches, and another line cleared the gradients of all batches except the last.
    The linter reports a call that clears the gradients right before the step, and a call that clears them in every
    iteration of a loop that steps only in some iterations.

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

MIN_WINDOWS = 5  # all windows so far have the same pattern; batches that are skipped because of their loss have none
MAX_DISCARDED = 4096  # backward passes before a step that are recorded; a loop without an optimizer never steps


class _Discarded(NamedTuple):
    """One backward pass whose gradients were cleared before a step used them."""

    backward: CodePosition | None
    clearing: CodePosition | None
    batch: int


class Detector(BaseDetector):
    """Records whether the gradients of each backward pass are used by a step or cleared before."""

    subscribes_to = (BackwardEnded, GradientsCleared, StepTaken, TracingGap)

    def __init__(self) -> None:
        self._effective = WeakIdDict[Ref, bool]()  # optimizers with a step that found gradients
        self._empty: weakref.WeakKeyDictionary[Ref, int] = weakref.WeakKeyDictionary()
        self._unused: tuple[Any, int] | None = None  # line and batch of the latest backward pass
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
            message=f"None of the {times} steps of {event.optimizer.name} found a gradient: each time, all gradients "
            "were cleared between `backward()` and the step, so nothing was trained.",
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
            message=f"Before each of {self._equal_windows} calls of `{event.optimizer.name}.step()`, the gradients of "
            f"{count} of {count + 1} batches were cleared: only the last batch was trained on.",
            location=clearing,
            related=tuple(
                (line, label) for line, label in ((backward, "`backward()`"), (event.location, "the step")) if line
            ),
        )


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each call that clears gradients between the backward passes of a loop and their step."""
    for step in source.ops(OpKind.STEP):
        if step.subject.kind is not ValueKind.OPTIMIZER or not step.loops:
            continue
        inside = source.ops_in_loop(step.loops[-1], root=step.entry_point)
        reaching = [each for each in inside if each.kind is OpKind.BACKWARD and source.reaches(each, step.subject)]
        cleared = _just_before(source, step)
        if cleared is not None:
            again = sum(each.kind is OpKind.STEP and each.subject.may_alias(step.subject) for each in inside) > 1
            when = "clears the gradients right before the step, so the step finds none."
        else:
            cleared, again = _in_every_iteration(source, step, inside), False
            when = "clears the gradients in every iteration, but the step runs only in some of them."
        if cleared is not None and reaching and not again:
            yield Hit(
                message=f"`{ast.unparse(cleared.node)}` {when}",
                node=cleared.node,
                related=((reaching[0].node, "`backward()`"), (step.node, "the step")),
                fix=move_after_fix(
                    source, cleared, step, "Clear the gradients after the step", safe=cleared.branches == step.branches
                ),
            )


def _just_before(source: SourceFile, step: Op) -> Op | None:
    """Return the call that clears gradients before a step, if nothing between them can create a gradient."""
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
    """Return the call that clears gradients in every iteration of a loop that steps only at the end of each window."""
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
    fix="Clear the gradients after the step or before the first backward(), never between backward() and its step.",
    rule=RULE,
    detector=Detector,
    inject=inject,
)
