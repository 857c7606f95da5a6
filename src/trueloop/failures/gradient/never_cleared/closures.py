"""Finds closures of LBFGS that clear no gradients: one step calls them several times, and the gradients add up."""

from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.queries.closures import calls_closure_repeatedly, ops_in_closure
from trueloop.analysis.source_file import SourceFile
from trueloop.core.findings import Evidence
from trueloop.tracing.events import BackwardEnded, BackwardStarted, Ref, StepStarted, StepTaken

MIN_STEPS: Final = 2


class ClosureGradients:
    """Counts the backward passes within a step of LBFGS that add to the gradients of the one before."""

    def __init__(self) -> None:
        self._in_step: Ref | None = None
        self._left: dict[Ref, Any] = {}
        """The gradients after the latest backward pass of the running step."""
        self._sums = 0
        self._steps = 0

    def on_step_started(self, event: StepStarted) -> None:
        """Begin to count."""
        is_iterated = event.optimizer.kind == "LBFGS" and event.live_optimizer.param_groups[0]["max_iter"] > 1
        self._in_step = event.optimizer if is_iterated else None
        self._left, self._sums = {}, 0

    def on_backward_started(self, event: BackwardStarted) -> None:
        """Count the backward pass if it finds the gradients of the one before."""
        if self._in_step is None or not self._left:
            return
        from trueloop.tracing.gradients import is_unchanged, l1_norms

        live = event.live_parameters
        same = [live[ref].grad for ref, seen in self._left.items() if ref in live and is_unchanged(live[ref], seen)]
        norms = l1_norms(same) if len(same) == len(self._left) else []
        if any(norm is not None and float(norm) > 0 for norm in norms):
            self._sums += 1
        else:
            self._in_step = None  # the closure clears them

    def on_gradients_cleared(self) -> None:
        """Stop counting until the next step: the closure clears the gradients."""
        self._in_step = None

    def on_backward_ended(self, event: BackwardEnded) -> None:
        """Remember the gradients."""
        if self._in_step is not None:
            from trueloop.tracing.gradients import snapshots

            self._left = snapshots({ref: event.live_parameters[ref] for ref in event.reached_parameters})

    def on_step_taken(self, event: StepTaken) -> Evidence | None:
        """Return evidence at the second step with such a closure."""
        sums, self._left = self._sums if self._in_step is event.optimizer else 0, {}
        self._in_step = None
        self._steps += bool(sums)
        if not sums or self._steps != MIN_STEPS:
            return None
        return Evidence(
            message=f"{event.call} called its closure {sums + 1} times, but the closure does not clear the gradients: "
            "each `backward()` added to those of the earlier calls.",
            location=event.location,
            fix="Call `optimizer.zero_grad()` at the start of the closure.",
        )


def uncleared_closures(source: SourceFile) -> Iterator[tuple[Op, Op]]:
    """Yield each step of LBFGS whose closure computes gradients and clears none, with its backward pass."""
    for step in source.ops(OpKind.STEP):
        if step.value != "closure" or not calls_closure_repeatedly(step):
            continue
        inside = ops_in_closure(source, step)
        backward = next(
            (each for each in inside if each.kind is OpKind.BACKWARD and source.reaches(each, step.subject)), None
        )
        if backward is None or any(source.may_clear(each, step.subject) for each in inside):
            continue
        if not source.escapes(step.subject, inside):
            yield step, backward
