"""Finds backward passes from losses that functions of the program return as a copy, without a graph."""

import ast
from collections.abc import Iterator, Set
from functools import lru_cache
from typing import Any, Final, NamedTuple

from trueloop.analysis.operations import OpKind
from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.possible_values import computed_from, possible_values
from trueloop.analysis.source_file import SourceFile, last_name
from trueloop.core.source_text import dotted_name, nodes_in, unparse

COPIES: Final = frozenset(("tensor", "Variable", "FloatTensor", "Tensor", "from_numpy", "scalar_tensor"))
"""Functions whose result has no graph."""
_REDUCTIONS: Final = frozenset(("sum", "mean", "stack", "cat", "item", "to", "float", "squeeze"))
_MAX_DEPTH: Final = 8


class CopiedLoss(NamedTuple):
    """A copy of a loss that is the only origin of a backward pass."""

    copy: ast.Call
    backward: ast.Call


def copied_losses(source: SourceFile) -> Iterator[CopiedLoss]:
    """Yield each backward pass all of whose terms are copies, if one is computed from the output of a model."""
    for call in source.all_calls:
        if not isinstance(call.func, ast.Attribute) or call.func.attr != "backward" or call.args or call.keywords:
            continue
        copies = _copies(source, call.func.value, _MAX_DEPTH)
        for each in copies or ():
            if _is_computed_by_model(source, each.args[0]) and not _reads_grad(source, each):
                yield CopiedLoss(each, call)
                break


def _copies(source: SourceFile, node: ast.expr, depth: int) -> list[ast.Call] | None:
    """Return the copies from which a loss is computed, [] for a number; None if a term may have a graph."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Div):
        factors = [(_copies(source, each, depth), each) for each in (node.left, node.right)]
        copies = [copy for found, _ in factors for copy in found or ()]
        unknown = [each for found, each in factors if found is None]
        is_cut = copies and not any(_is_computed_by_model(source, each) for each in unknown)
        return copies if is_cut or not unknown else None
    if isinstance(node, ast.Call) and (copy := _copy(node)) is not None:
        return [copy]
    parts = _terms(node)
    if depth and isinstance(node, ast.Call):
        parts = _parts_of_call(source, node)
    elif depth and isinstance(node, ast.Name | ast.Attribute):
        parts = _assigned(source, node)
    found = [_copies(source, each, depth - 1) for each in parts] if parts is not None else [None]
    known = [each for each in found if each is not None]
    return [copy for each in known for copy in each] if len(known) == len(found) else None


def _terms(node: ast.expr) -> list[ast.expr] | None:
    """Return the terms of a sum, the alternatives or the items of an expression; None for others."""
    match node:
        case ast.Constant():
            return []
        case ast.BinOp(op=ast.Add() | ast.Sub(), left=left, right=right):
            return [left, right]
        case ast.UnaryOp(operand=inner) | ast.ListComp(elt=inner) | ast.GeneratorExp(elt=inner):
            return [inner]
        case ast.IfExp(body=body, orelse=orelse):
            return [body, orelse]
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            return elements
        case _:
            return None


def _copy(call: ast.Call) -> ast.Call | None:
    """Return the copy of ``torch.tensor(value, requires_grad=True)`` or ``torch.tensor(value).requires_grad_()``."""
    is_marked = any(each.arg == "requires_grad" and getattr(each.value, "value", 0) is True for each in call.keywords)
    match call:
        case ast.Call(func=ast.Attribute(attr="requires_grad_", value=ast.Call() as inner)):
            call, is_marked = inner, True
        case _:
            pass
    return call if is_marked and last_name(call.func) in COPIES and call.args else None


def _parts_of_call(source: SourceFile, call: ast.Call) -> list[ast.expr] | None:
    """Return what a call of the program returns, or what a call sums up; None if that is unknown."""
    name, func = last_name(call.func), call.func
    if name in _REDUCTIONS:
        is_function = isinstance(func, ast.Name) or (
            isinstance(func, ast.Attribute) and dotted_name(func.value) == "torch"
        )
        return call.args[:1] if is_function else [func.value] if isinstance(func, ast.Attribute) else None
    return possible_values(source, call) or None


def _assigned(source: SourceFile, node: ast.expr) -> list[ast.expr] | None:
    """Return what a variable may have as its value, what is added to it, and what is appended to it."""
    values = [*possible_values(source, node)]
    path, function = ast.unparse(node), function_of(source, node)
    current = source.statement_of(node)
    for each in nodes_in(function, ast.AugAssign, ast.Call):
        if isinstance(each, ast.AugAssign):
            values += [each.value] if isinstance(each.op, ast.Add) and unparse(each.target) == path else []
        elif isinstance(each.func, ast.Attribute) and each.func.attr == "append":
            values += each.args if unparse(each.func.value) == path else []
    return [each for each in values if source.statement_of(each) is not current] or None


def _is_computed_by_model(source: SourceFile, node: ast.expr) -> bool:
    """Return True if an expression is computed from the output of a model, also by ``+=`` and ``append``."""
    calls = _model_calls(source)
    for each in computed_from(source, node, _MAX_DEPTH) if calls else ():
        added = _assigned(source, each) if isinstance(each, ast.Name) else None
        parts = (part for value in added or () for part in computed_from(source, value, 4))
        if id(each) in calls or any(id(part) in calls for part in parts):
            return True
    return False


@lru_cache(maxsize=1)
def _model_calls(source: SourceFile) -> Set[int]:
    return {id(each.node) for each in source.ops(OpKind.MODEL_CALL, OpKind.FORWARD_CALL)}


def _reads_grad(source: SourceFile, copy: ast.Call) -> bool:
    """Return True if the program reads ``grad`` of the variable that a copy is assigned to."""
    statement: Any = source.statement_of(copy)
    targets = [dotted_name(each) for each in getattr(statement, "targets", ())]
    reads = (each for each in nodes_in(function_of(source, copy), ast.Attribute) if each.attr == "grad")
    return any(dotted_name(each.value) in targets for each in reads)
