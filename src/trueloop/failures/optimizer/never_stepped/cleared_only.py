"""Finds optimizers whose gradients are computed and cleared, and that nothing steps."""

import ast
from collections.abc import Iterator

from trueloop.analysis.abstract_value import MANAGED, AbstractValue, ValueKind
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.queries.plain_steps import PlainCall, plain_calls
from trueloop.analysis.source_file import SourceFile, last_name
from trueloop.core.source_text import nodes_in

_OTHER_STEPS = ("env", "sched", "scaler", "plateau", "warmup", "pbar", "progress", "lr_")


def cleared_only(source: SourceFile) -> Iterator[Op]:
    """Yield the creation of each optimizer that a training loop clears after use, but never steps."""
    stepped = [each.subject for each in source.ops(OpKind.STEP)]
    for built in source.ops(OpKind.CREATE):
        optimizer = built.subject
        is_known = optimizer.kind is ValueKind.OPTIMIZER and bool(optimizer.models()) and MANAGED not in optimizer.facts
        if not is_known or any(each.kind is not ValueKind.OPTIMIZER or each.may_alias(optimizer) for each in stepped):
            continue
        if any(each.covers(optimizer) or optimizer.covers(each) for each in stepped):
            continue  # another optimizer of the same parameters
        run = source.ops_of_run(built)
        trains = any(_trains(source, each, optimizer, run) for each in run)
        others_step = any(each.entry_point == built.entry_point for each in source.ops(OpKind.STEP))
        if trains and others_step and not _may_be_stepped(source, built, run):
            yield built


def cleared_for_step(source: SourceFile) -> Iterator[tuple[PlainCall, PlainCall]]:
    """Yield each backward pass and the ``zero_grad()`` that is written where ``step()`` is meant.

    The same optimizer is cleared right before and right after the backward pass, next to another optimizer that steps.
    """
    for calls in plain_calls(source):
        owners = [ast.unparse(getattr(each.call.func, "value", each.call)) if each else "" for each in calls]
        steps = [number for number, each in enumerate(calls) if each is not None and each.role == "step"]
        for end, last in enumerate(calls):
            start = next((n for n in range(end - 1, -1, -1) if owners[n] == owners[end]), end)
            between = [each for each in calls[start + 1 : end] if each is None or each.role != "clip"]
            first, backward = calls[start], between[0] if len(between) == 1 else None
            if last is None or first is None or backward is None or backward.role != "backward":
                continue
            others = any(owners[number] != owners[end] for number in steps)
            if (first.role, last.role) == ("clear", "clear") and others and _is_over(calls[end + 1 :]):
                yield backward, last


def _is_over(later: list[PlainCall | None]) -> bool:
    """Return True if no later step can use gradients of the same backward pass for other parameters."""
    following = next((each.role for each in later if each is not None), "")
    return following == "clear" or (not following and not later)


def _trains(source: SourceFile, clearing: Op, optimizer: AbstractValue, run: list[Op]) -> bool:
    """Return True for ``zero_grad()`` of an optimizer in a loop whose backward passes reach its parameters."""
    if clearing.kind is not OpKind.CLEAR_GRADIENTS or clearing.subject is not optimizer or not clearing.loops:
        return False
    inside = [each for each in run if each.kind is OpKind.BACKWARD and each.is_inside(clearing.loops[-1])]
    return any(source.reaches(each, optimizer) for each in inside)


def _may_be_stepped(source: SourceFile, built: Op, run: list[Op]) -> bool:
    """Return True if unknown code may step an optimizer, or may read its gradients."""
    if any(each.kind is OpKind.ACCESS_GRADIENTS for each in run):
        return True
    targets: list[ast.expr] = getattr(built.statement, "targets", [])
    names = {last_name(each) for each in targets} - {""}
    escapes = [each for each in run if each.kind is OpKind.ESCAPE and isinstance(each.node, ast.Call)]
    if not names or any(names & _passed_names(each.node) for each in escapes):
        return True
    resolved = {id(each.node) for each in source.operations}
    resolved |= {id(call) for each in source.operations for call in each.calls}
    return any(
        isinstance(call.func, ast.Attribute)
        and call.func.attr == "step"
        and id(call) not in resolved
        and not any(word in ast.unparse(call.func.value).lower() for word in _OTHER_STEPS)
        for call in source.all_calls
    )


def _passed_names(call: ast.Call) -> set[str]:
    """Return the names and attributes in the arguments of a call."""
    arguments = [*call.args, *(each.value for each in call.keywords)]
    return {last_name(each) for argument in arguments for each in nodes_in(argument, ast.expr)}
