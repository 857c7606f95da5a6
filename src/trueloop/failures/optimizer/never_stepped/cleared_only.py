"""Finds optimizers whose gradients are computed and cleared in a loop, and that nothing steps."""

import ast
from collections.abc import Iterator

from trueloop.analysis.abstract_value import MANAGED, AbstractValue, ValueKind
from trueloop.analysis.operations import Op, OpKind
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
