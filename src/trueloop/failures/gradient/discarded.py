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
    Or several losses of one batch were run backward, and all gradients of all losses except the last were cleared, in a
    program that does not read gradients. The linter reports a call that clears the gradients right before the step, and
    a call that clears them in every iteration of a loop that steps only in some iterations.

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
from trueloop.analysis.program_files import parse_program
from trueloop.analysis.queries.accumulation_windows import accesses_grad, accumulation_window
from trueloop.analysis.queries.gradient_uses import uses_gradients
from trueloop.analysis.queries.plain_steps import plain_calls
from trueloop.analysis.queries.statement_moves import move_after_fix
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import CodePosition, Evidence
from trueloop.core.source_text import Fix, nodes_in
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.failures.gradient.never_cleared import BAD as NEVER_CLEARED
from trueloop.failures.teaching_script import Piece, TeachingLoop
from trueloop.tracing.events import BackwardEnded, GradientsCleared, Ref, Refs, StepTaken, TracingGap
from trueloop.tracing.running_code import program_stack, user_files, user_modules
from trueloop.tracing.trackers.accumulation_windows import AccumulationWindows
from trueloop.tracing.trackers.gradient_ledger import GradientLedger
from trueloop.tracing.weak_id_dict import WeakIdDict

MIN_WINDOWS = 5  # windows with the same pattern; batches skipped because of their loss have no regular pattern
MAX_DISCARDED = 4096  # recorded backward passes before a step; a loop without an optimizer never steps


class _Discarded(NamedTuple):
    """One backward pass whose gradients were cleared before a step used them."""

    backward: CodePosition | None
    clearing: CodePosition | None
    batch: int
    is_complete: bool
    """Whether the gradients of all parameters that the backward pass reached were cleared."""


class _Backward(NamedTuple):
    """The latest backward pass that no step has used."""

    location: CodePosition | None
    batch: int
    reached: Refs
    parameter: Ref
    """One of the reached parameters."""
    gradient: Any
    """A weak reference to the gradient of ``parameter`` after the backward pass."""

    def is_replaced(self, step: StepTaken) -> bool:
        """Return True if the program has assigned other gradients before a step."""
        parameter = step.live_parameters.get(self.parameter)
        return parameter is not None and parameter.grad is not None and self.gradient() is not parameter.grad


class Detector(BaseDetector):
    """Records whether the gradients of each backward pass are used by a step or cleared before."""

    gradients: GradientLedger
    windows: AccumulationWindows

    def __init__(self) -> None:
        self._effective = WeakIdDict[Ref, bool]()  # optimizers with a step that found gradients
        self._empty: weakref.WeakKeyDictionary[Ref, int] = weakref.WeakKeyDictionary()
        self._unused: _Backward | None = None
        self._discarded: list[_Discarded] = []
        self._pattern: tuple[Any, ...] | None = None
        """Lines of the cleared backward passes of a window and of their clearing, in order, and of the last one."""
        self._reads_gradients: bool | None = None
        self._equal_windows = 0
        self._irregular = False

    def on_backward_ended(self, event: BackwardEnded) -> None:
        """Record the backward pass."""
        reached = event.reached_parameters
        for ref in reached:
            gradient = event.live_parameters[ref].grad
            if gradient is not None:
                self._unused = _Backward(event.location, event.batch, reached, ref, weakref.ref(gradient))
                break

    def on_gradients_cleared(self, event: GradientsCleared) -> None:
        """Record the cleared gradients."""
        unused = self.gradients.unused_when_cleared
        if unused and self._unused is not None and len(self._discarded) < MAX_DISCARDED:
            backward, is_complete = self._unused, self._unused.reached <= unused
            self._discarded.append(_Discarded(backward.location, event.location, backward.batch, is_complete))
            self._unused = None

    def on_tracing_gap(self, event: TracingGap) -> None:
        """Discard incomplete observations."""
        self._unused, self._discarded, self._equal_windows, self._pattern = None, [], 0, None

    def on_step_taken(self, event: StepTaken) -> Evidence | None:
        """Return evidence at a step."""
        discarded, self._discarded = self._discarded, []
        latest, self._unused = self._unused, None
        if event.with_gradient:
            if not self._effective.get(event.optimizer):
                self._effective.put(event.optimizer, True)
        elif self.windows.ended_by(event.optimizer).backwards and not self._effective.get(event.optimizer):
            self._empty[event.optimizer] = times = self._empty.get(event.optimizer, 0) + 1
            cleared_at = discarded[-1].clearing if discarded else None
            return self._evidence_without_gradient(event, times, cleared_at) if times > 1 else None
        if discarded and not event.closure:  # a closure clears the gradients of each of its evaluations
            return self._evidence_of_windows(event, discarded, latest)
        self._equal_windows, self._irregular, self._pattern = 1, True, None  # the usual case
        return None

    def _evidence_without_gradient(self, event: StepTaken, times: int, cleared_at: CodePosition | None) -> Evidence:
        return Evidence(
            message=f"None of the {times} steps of {event.optimizer.name} found a gradient: each time, all gradients "
            "were cleared between `backward()` and the step, so nothing was trained.",
            location=cleared_at or event.location,
            related=((event.location, "this step found no gradients"),) if event.location else (),
            first_update=0,
        )

    def _evidence_of_windows(
        self, event: StepTaken, discarded: list[_Discarded], latest: _Backward | None
    ) -> Evidence | None:
        """Return evidence if every window so far cleared the gradients of all its batches, or losses, except the last.

        Gradients of several losses on one batch may only be measured, so the program must not read gradients.
        """
        batches = {each.batch for each in discarded} | {latest.batch if latest else -1}
        is_accumulation = len(batches) == len(discarded) + 1
        lines = [(each.backward, each.clearing) for each in discarded]
        pattern = None
        if latest and not latest.is_replaced(event) and len(discarded) < MAX_DISCARDED:
            pattern = (*lines, latest.location)
            if is_accumulation and set(lines) != {(latest.location, lines[0][1])}:
                pattern = None
            if not is_accumulation and not all(each.is_complete for each in discarded):
                pattern = None
        self._equal_windows = self._equal_windows + 1 if pattern and pattern == self._pattern else 1
        self._irregular |= pattern is None or (self._pattern is not None and pattern != self._pattern)
        self._pattern = pattern
        if pattern is None or self._equal_windows < MIN_WINDOWS or self._irregular:
            return None
        if not is_accumulation and self._program_reads_gradients():
            return None
        count, (backward, clearing) = len(discarded), lines[0]
        what = "batch" if is_accumulation else "loss"
        return Evidence(
            message=f"Before each of {self._equal_windows} calls of `{event.optimizer.name}.step()`, the gradients of "
            f"{count} of {count + 1} {what}es were cleared: only the last {what} was trained on.",
            location=clearing,
            related=tuple(
                (line, label) for line, label in ((backward, "`backward()`"), (event.location, "the step")) if line
            ),
        )

    def _program_reads_gradients(self) -> bool:
        """Return True if the program may use the gradients before it clears them, as SAM does."""
        if self._reads_gradients is None:
            trees = parse_program(user_files(program_stack()), user_modules())
            self._reads_gradients = trees is None or uses_gradients(trees)
        return self._reads_gradients


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each call that clears gradients between the backward passes of a loop and their step."""
    for step in source.ops(OpKind.STEP):
        if step.subject.kind is not ValueKind.OPTIMIZER or not step.loops:
            continue
        inside = source.ops_in_loop(step.loops[-1], root=step.entry_point)
        reaching = [each for each in inside if each.kind is OpKind.BACKWARD and source.reaches(each, step.subject)]
        call = _clearing_before(source, step)
        if call is not None:
            steps_again = sum(each.kind is OpKind.STEP and each.subject.may_alias(step.subject) for each in inside) > 1
            effect = "clears the gradients right before the step, so the step finds none."
        else:
            call, steps_again = _clearing_in_every_iteration(source, step, inside), False
            effect = "clears the gradients in every iteration, but the step runs only in some of them."
            if call is None:
                call = _clearing_in_inner_loop(source, step, inside) or _clearing_between(source, step, inside)
                effect = "clears gradients that no step has used: the step only gets those of the last `backward()`."
        if call is not None and reaching and not steps_again:
            yield Hit(
                message=f"`{ast.unparse(call.node)}` {effect}",
                node=call.node,
                related=((reaching[0].node, "`backward()`"), (step.node, "the step")),
                fix=move_after_fix(
                    source, call, step, "Clear the gradients after the step", safe=call.branches == step.branches
                ),
            )


def find_all(source: SourceFile) -> Iterator[Hit]:
    """Yield the same as `find`, and gradients that the text clears between a backward pass and the step of a block."""
    found = list(find(source))
    yield from found
    for calls in plain_calls(source):
        for position, clear in enumerate(calls[:-1]):
            step = calls[position + 1]
            if clear is None or step is None or (clear.role, step.role) != ("clear", "step"):
                continue
            is_same = clear.owner == step.owner and clear.owner != ""
            before = [each for each in calls[:position] if each is not None and each.role in ("backward", "step")]
            if is_same and before and before[-1].role == "backward" and all(h.node is not clear.call for h in found):
                yield Hit(
                    message=f"`{ast.unparse(clear.call)}` clears the gradients right before the step, so the step "
                    "finds none.",
                    node=clear.call,
                    related=((before[-1].call, "`backward()`"), (step.call, "the step")),
                    fix=_exchange(source, clear.statement, step.statement),
                )


def _exchange(source: SourceFile, clear: ast.stmt, step: ast.stmt) -> Fix | None:
    """Return the fix that clears the gradients after the step."""
    edits = source.text.move_statement(clear, after=step)
    return Fix(edits, safe=False, description="Clear the gradients after the step") if edits else None


def _clearing_before(source: SourceFile, step: Op) -> Op | None:
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


def _clearing_in_every_iteration(source: SourceFile, step: Op, inside: list[Op]) -> Op | None:
    """Return the call that clears gradients in every iteration of a loop that steps only at the end of each window."""
    loop = step.loops[-1]
    window = accumulation_window(step, loop)
    if window is None or window.iterations == 1 or MANAGED in step.subject.facts or accesses_grad(source):
        return None
    ends = {(id(window.branch.node), window.branch.arm)}
    for each in inside:
        branches = {(id(branch.node), branch.arm) for branch in each.branches}
        if (each.kind is OpKind.STEP and not ends <= branches) or (
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


def _clearing_in_inner_loop(source: SourceFile, step: Op, inside: list[Op]) -> Op | None:
    """Return the call that clears gradients before each backward pass of a loop whose gradients one later step uses."""
    depth = len(step.loops)
    for each in inside:
        if each.index > step.index or len(each.loops) != depth + 1 or not source.clears_all(each, step.subject):
            continue
        loop = each.loops[-1]
        body = [other for other in inside if other.is_inside(loop)]
        backward = any(
            other.kind is OpKind.BACKWARD and other.same_iteration_as(each) and source.reaches(other, step.subject)
            for other in body
            if other.index > each.index
        )
        uses = any(other.kind in (OpKind.STEP, OpKind.ACCESS_GRADIENTS, OpKind.ESCAPE) for other in body)
        leaves = bool(nodes_in(loop.node, ast.Break, ast.Return, ast.Try))
        is_repeated = not loop.runs_at_most_once() and each.is_unconditional_in(loop) and not leaves
        if backward and is_repeated and not uses and not accesses_grad(source):
            return each
    return None


def _clearing_between(source: SourceFile, step: Op, inside: list[Op]) -> Op | None:
    """Return the call that clears gradients between two backward passes of one step.

    If the optimizer's parameters are unknown, each loss of a program with several optimizers may belong to another.
    """
    uses = (OpKind.STEP, OpKind.CLEAR_GRADIENTS)
    if not step.subject.models() and any(
        each.kind in uses and not each.subject.may_alias(step.subject) for each in inside
    ):
        return None
    same = [
        each
        for each in inside
        if each.index <= step.index and each.same_iteration_as(step) and each.branches == step.branches
    ]
    watched = (OpKind.STEP, OpKind.CLEAR_GRADIENTS, OpKind.BACKWARD, OpKind.ACCESS_GRADIENTS)
    order = [each for each in same if each.kind in watched]
    for first, clearing, second, last in zip(order, order[1:], order[2:], order[3:], strict=False):
        kinds = [each.kind for each in (first, clearing, second)]
        if last is not step or kinds != [OpKind.BACKWARD, OpKind.CLEAR_GRADIENTS, OpKind.BACKWARD]:
            continue
        both = all(source.reaches(each, step.subject) for each in (first, second))
        escapes = any(each.kind is OpKind.ESCAPE and first.index < each.index < clearing.index for each in inside)
        is_frozen = any(  # a frozen part got no gradients from the first pass
            each.kind is OpKind.SET_REQUIRES_GRAD and each.value is not True and each.index < first.index
            for each in inside
        )
        if (
            both
            and source.clears_all(clearing, step.subject)
            and not escapes
            and not is_frozen
            and not accesses_grad(source)
        ):
            return clearing
    return None


RULE = Rule(required_words=("backward(", ".step(", "zero_grad("), find=find_all)


def inject(loop: TeachingLoop) -> None:
    """Inject this failure into the teaching loop."""
    loop.require(loop.settings["precision"] != "float16", "A GradScaler needs a gradient.", precision="float32")
    loop.move(Piece.ZERO_GRAD, before=Piece.OPTIMIZER_STEP)


BAD = changed(NEVER_CLEARED, {"    optimizer.step()": "    optimizer.zero_grad()\n    optimizer.step()"})

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
