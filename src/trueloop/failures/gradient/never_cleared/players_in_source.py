"""Finds gradients that a generator's loss leaves in the discriminator, whose optimizer steps with them, in the source.

The generator's loss is computed through the discriminator, so its backward pass adds to the gradients of both. Those of
the discriminator must be cleared before its own loss. A generator that is trained on both losses is no such case: the
second one goes through the same outputs, as in BicycleGAN. Neither are two heads of one encoder: their losses leave
gradients in what comes before them, and those are used.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from trueloop.analysis.abstract_value import AbstractValue, ValueKind
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.source_file import SourceFile


class LeftBehind(NamedTuple):
    """A step that also uses the gradients of another player's loss."""

    step: Op
    backward: Op
    """The backward pass of the other player, which left them."""


def steps_with_leftovers(source: SourceFile) -> Iterator[LeftBehind]:
    """Yield each step whose gradients include those of a loss with which another optimizer has stepped before."""
    reported: set[int] = set()
    for step in source.ops(OpKind.STEP):
        loops = [each for each in step.loops if not each.runs_at_most_once()]
        if not loops or not _is_known(step.subject):
            continue
        inside = source.ops_in_loop(loops[-1], root=step.entry_point)
        backward = _backward_of(source, inside, step)
        if backward is None:
            continue
        others = [each for each in inside if each.kind is OpKind.STEP and _is_known(each.subject)]
        for other in others:
            is_other = not other.subject.may_alias(step.subject) and not other.subject.covers(step.subject)
            if is_other and not step.subject.covers(other.subject) and id(other.node) not in reported:
                own = _own_step_after(source, inside, backward, step, other)
                if own is not None:
                    reported.add(id(other.node))
                    yield LeftBehind(own, backward)


def _is_known(optimizer: AbstractValue) -> bool:
    return optimizer.kind is ValueKind.OPTIMIZER and bool(optimizer.models())


def _backward_of(source: SourceFile, inside: Sequence[Op], step: Op) -> Op | None:
    """Return the latest backward pass before a step, if it reaches the parameters of its optimizer."""
    before = [each for each in inside if each.kind is OpKind.BACKWARD and each.index < step.index]
    is_own = bool(before) and source.reaches(before[-1], step.subject) and "inputs" not in before[-1].arguments
    return before[-1] if is_own else None


def _own_step_after(source: SourceFile, inside: Sequence[Op], backward: Op, step: Op, other: Op) -> Op | None:
    """Return the other optimizer's step, if it uses what a backward pass through its model left there.

    Args:
        source: the file.
        inside: the operations of the loop.
        backward: the backward pass of the first player.
        step: its step.
        other: a step of the other optimizer.
    """
    player, victim = step.subject, other.subject
    if not source.reaches(backward, victim) or not _goes_through(inside, backward, player, victim):
        return None
    if source.escapes(victim, inside) or any(_freezes(each, victim) for each in inside):
        return None
    after = [each for each in inside if each.index > backward.index]
    around = [*after, *(each for each in inside if each.index < backward.index)]  # on to the next iteration
    has_stepped = has_own = False
    for each in around:
        if source.may_clear(each, victim):
            return None
        has_stepped |= each is step
        is_own = has_stepped and each.kind is OpKind.BACKWARD and source.reaches(each, victim)
        if is_own and _continues(inside, backward, each, victim):
            return None
        has_own |= is_own
        if each.kind is OpKind.STEP and each.subject.may_alias(victim):
            return each if has_own else None
    return None


def _goes_through(inside: Sequence[Op], backward: Op, player: AbstractValue, victim: AbstractValue) -> bool:
    """Return True if a loss is computed from the output of the victim's model for the output of the player's model."""
    graph: set[int] = {id(each) for each in backward.subject.autograd_graph()}
    return any(
        each.result is not None
        and id(each.result) in graph
        and victim.covers(each.subject)
        and any(_reaches(given, player) for given in each.inputs)
        for each in inside
        if each.kind in (OpKind.MODEL_CALL, OpKind.FORWARD_CALL)
    )


def _continues(inside: Sequence[Op], backward: Op, own: Op, victim: AbstractValue) -> bool:
    """Return True if two losses are computed from one output of the victim's model: it is trained on both of them."""
    graphs = [{id(each) for each in loss.subject.autograd_graph()} for loss in (backward, own)]
    shared = graphs[0] & graphs[1]
    return any(
        id(each.result) in shared and victim.covers(each.subject)
        for each in inside
        if each.kind in (OpKind.MODEL_CALL, OpKind.FORWARD_CALL) and each.result is not None
    )


def _reaches(value: AbstractValue, optimizer: AbstractValue) -> bool:
    return any(each.kind is ValueKind.MODEL and optimizer.covers(each) for each in value.autograd_graph())


def _freezes(operation: Op, victim: AbstractValue) -> bool:
    """Return True if a loop changes which parameters of the victim get gradients."""
    subject: Any = operation.subject
    return operation.kind is OpKind.SET_REQUIRES_GRAD and (subject.covers(victim) or not subject.models())
