"""Finds BatchNorm layers that are put into eval mode before a loop in which ``train()`` undoes it."""

import ast
import re
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.abstract_value import AbstractValue, ValueKind
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.modes import has_mode_dependent_layers, sets_mode_of
from trueloop.analysis.queries.possible_values import enclosing_nodes
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.findings import Severity
from trueloop.core.source_text import encloses, nodes_in

_NORM: Final = re.compile(r"BatchNorm|(^|\W|_)bn\d*(\W|_|$)", re.IGNORECASE)


def find_undone(source: SourceFile) -> Iterator[Hit]:
    """Yield each ``train()`` in a loop that undoes a function that has put the BatchNorm layers into eval mode."""
    functions = source.nodes_of(ast.FunctionDef)
    freezing = {each.name: each for each in functions if _freezes(each)}
    if not freezing or any(each.name == "train" and "super()" in ast.unparse(each) for each in functions):
        return
    calls = [each for each in source.all_calls if _called(each) in freezing]
    calls = [each for each in calls if not any(encloses(function, each) for function in freezing.values())]
    if len(calls) != 1 or any(isinstance(each, ast.For | ast.While) for each in enclosing_nodes(source, calls[0])):
        return  # it may be repeated after each `train()`
    undoing = _undoing(source, calls[0])
    if undoing is not None:
        yield Hit(
            message=f"`{ast.unparse(undoing)}` puts the BatchNorm layers that `{ast.unparse(calls[0])}` has frozen "
            "back into train mode: their statistics change from the first epoch on.",
            node=undoing,
            related=((calls[0], "they are frozen here"),),
            severity=Severity.WARNING,
        )


def find_parts_undone(source: SourceFile) -> Iterator[Hit]:
    """Yield each ``train()`` of a model that undoes the ``eval()`` of a frozen part before a training step."""
    modes, reported = source.ops(OpKind.SET_MODE), set[int]()
    for put in (each for each in modes if each.value is False and not each.loops):
        part = put.subject
        if not _is_frozen(source, part) or not has_mode_dependent_layers(source, part):
            continue
        later = [each for each in source.ops_of_run(put) if each.index > put.index]
        undoing = next((each for each in later if each.value is True and _sets_mode(each, part)), None)
        if undoing is None or undoing.subject.may_alias(part) or id(undoing.node) in reported:
            continue
        later = [each for each in later if each.index > undoing.index]
        until = next((number for number, each in enumerate(later) if each.kind is OpKind.STEP), 0)
        is_called = any(each.kind is OpKind.MODEL_CALL and each.subject.may_alias(part) for each in later[:until])
        if not is_called or any(each.value is not True and _sets_mode(each, part) for each in later[:until]):
            continue
        reported.add(id(undoing.node))
        yield Hit(
            message=f"`{ast.unparse(undoing.node)}` puts the frozen part that `{ast.unparse(put.node)}` has put into "
            "eval mode back into train mode, with active dropout or BatchNorm.",
            node=undoing.node,
            related=((put.node, "eval mode is set here"),),
            severity=Severity.WARNING,
        )


def _sets_mode(operation: Op, part: AbstractValue) -> bool:
    return operation.kind is OpKind.SET_MODE and sets_mode_of(operation, part)


def _is_frozen(source: SourceFile, part: AbstractValue) -> bool:
    """Return True for a part of another model, all weights of which are frozen and stay so."""
    changed = [
        each for each in source.ops(OpKind.SET_REQUIRES_GRAD) if each.subject.covers(part) or part.covers(each.subject)
    ]
    is_part = part.kind is ValueKind.MODEL and len(part.with_enclosing_modules()) > 1
    all_off = bool(changed) and all(each.value is False for each in changed)
    return is_part and all_off and any(each.subject.covers(part) and not each.branches for each in changed)


def _freezes(function: ast.FunctionDef) -> bool:
    """Return True for a function that puts BatchNorm layers, and nothing else, into eval mode."""
    text = ast.unparse(function)
    modes = [each for each in nodes_in(function, ast.Call) if last_name(each.func) == "eval" and not each.args]
    visits = ".modules()" in text or ".children()" in text or len(function.args.args) == 1
    conditions = [each for each in nodes_in(function, ast.If) if _NORM.search(ast.unparse(each))]
    inside = [each for each in modes if any(encloses(condition, each) for condition in conditions)]
    return bool(modes) and len(inside) == len(modes) and visits and ".train(" not in text


def _called(call: ast.Call) -> str:
    """Return the name of the function that a call runs, also for ``model.apply(freeze)``."""
    is_apply = last_name(call.func) == "apply" and len(call.args) == 1
    return last_name(call.args[0]) if is_apply else last_name(call.func)


def _undoing(source: SourceFile, call: ast.Call) -> ast.Call | None:
    """Return the ``train()`` of the same model in a later loop of the function; None if there is none.

    For a call in the constructor of a model: the first ``train()`` of an instance.
    """
    function = function_of(source, call)
    if getattr(function, "name", "") == "__init__":
        owner = source.parents.get(id(function))
        created = [each for each in source.nodes_of(ast.Assign) if _creates(each.value, getattr(owner, "name", ""))]
        names = {last_name(target) for each in created for target in each.targets} - {""}
        return next((each for each in source.all_calls if last_name(_trained(each)) in names), None)
    frozen = call.args[0] if len(call.args) == 1 and _called(call) == last_name(call.func) else None
    owner = call.func.value if frozen is None and isinstance(call.func, ast.Attribute) else frozen
    name = ast.unparse(owner).removesuffix(".module") if owner is not None else ""
    loops = [each for each in nodes_in(function, ast.For, ast.While) if each.lineno > call.lineno]
    trained = [each for loop in loops for each in nodes_in(loop, ast.Call) if _trained(each) is not None]
    return next((each for each in trained if ast.unparse(_trained(each) or each) == name), None)


def _creates(value: ast.expr, name: str) -> bool:
    """Return True for ``Net(...)`` and ``Net(...).to(device)``."""
    return bool(name) and any(last_name(each.func) == name for each in nodes_in(value, ast.Call))


def _trained(call: ast.Call) -> ast.expr | None:
    """Return the model of ``model.train()``."""
    match call:
        case ast.Call(func=ast.Attribute(attr="train", value=model), args=[] | [ast.Constant(value=True)], keywords=[]):
            return model
        case _:
            return None
