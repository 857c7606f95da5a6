"""Finds the outputs and losses that a function copies into a tensor with ``requires_grad`` but without a graph."""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from trueloop.analysis.queries.batch_loops import assigned_in, function_of, is_loss_call, without_conversions
from trueloop.analysis.source_file import SourceFile, last_name
from trueloop.core.source_text import dotted_name, nodes_in, walk

_COPIES: Final = frozenset(("tensor", "Variable", "FloatTensor", "Tensor", "as_tensor", "from_numpy"))
_RESULT: Final = re.compile(
    r"(^|_)(loss|losses|out|output|outputs|logits?|preds?|prediction|predictions|y_hat|y_pred|score|scores)\d?$"
)
_MODEL: Final = re.compile(
    r"(^|_)(model|net|network|generator|discriminator|classifier|encoder|decoder|forward)\d?$", re.I
)


class RewrappedResult(NamedTuple):
    """A result of a model that loses its graph before a backward pass."""

    name: str
    statement: Any
    backward: ast.Call
    is_copy: bool
    """True if the statement copies a value that a model or loss computes. False if the value only has the name of a
    result, or if the statement sets ``requires_grad`` of a loss."""


def rewrapped_results(source: SourceFile) -> Iterator[RewrappedResult]:
    """Yield each result of a model that becomes a leaf, in a function that calls ``backward()`` afterwards."""
    for statement in source.nodes_of(ast.Assign, ast.Expr):
        name, value = _copied(source, statement) if isinstance(statement, ast.Assign) else ("", None)
        is_copy = value is not None and _is_result(source, value, statement)
        if value is not None and not is_copy and not _RESULT.search(last_name(without_conversions(value))):
            continue
        name = name or _marked_name(statement)
        backward = _backward_after(source, statement, name) if name else None
        if backward is not None:
            yield RewrappedResult(name, statement, backward, is_copy)


def _copied(source: SourceFile, statement: ast.Assign) -> tuple[str, ast.expr | None]:
    """Return variable and value of ``out = torch.tensor(value, requires_grad=True)``; "" for other statements."""
    value, marked = statement.value, False
    match value:
        case ast.Call(func=ast.Attribute(attr="requires_grad_", value=ast.Call() as inner)):
            value, marked = inner, True
        case _:
            pass
    if not isinstance(value, ast.Call) or last_name(value.func) not in _COPIES or not value.args:
        return "", None
    marked |= any(each.arg == "requires_grad" and getattr(each.value, "value", None) is True for each in value.keywords)
    target = dotted_name(statement.targets[0])
    reads = (each for each in nodes_in(function_of(source, statement), ast.Attribute))
    if not marked or any(each.attr == "grad" and dotted_name(each.value) == target for each in reads):
        return "", None  # a program that reads its ``grad`` passes the gradient on by hand
    return target, value.args[0]


def _is_result(source: SourceFile, node: ast.expr, user: ast.AST, depth: int = 0) -> bool:
    """Return True for what a model or a loss computes."""
    node = without_conversions(node)
    if isinstance(node, ast.Call):
        if is_loss_call(source, node) or _MODEL.search(last_name(node.func)):
            return True
        inner = [*node.args[:1], *([node.func.value] if isinstance(node.func, ast.Attribute) else [])]
        return any(_is_result(source, each, user, depth) for each in inner)
    if isinstance(node, ast.Subscript | ast.BinOp):
        inner = [node.value] if isinstance(node, ast.Subscript) else [node.left, node.right]
        return any(_is_result(source, each, user, depth) for each in inner)
    name = dotted_name(node)
    if not name or depth > 3:
        return False
    values = [each for each in assigned_in(function_of(source, user), name) if each.lineno < user.lineno]  # type: ignore[attr-defined]
    return bool(values) and _is_result(source, values[-1], user, depth + 1)


def _marked_name(statement: ast.Assign | ast.Expr) -> str:
    """Return the loss of ``loss.requires_grad = True`` or ``loss.requires_grad_()``; "" for other statements."""
    match statement:
        case ast.Assign(targets=[ast.Attribute(attr="requires_grad", value=owner)], value=ast.Constant(value=True)):
            return _loss_name(owner)
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr="requires_grad_", value=owner), args=args)):
            is_true = all(getattr(each, "value", None) is True for each in args)
            return _loss_name(owner) if is_true else ""
        case _:
            return ""


def _loss_name(owner: ast.expr) -> str:
    return dotted_name(owner) if "loss" in last_name(owner).lower() else ""


def _backward_after(source: SourceFile, statement: Any, name: str) -> ast.Call | None:
    """Return the backward pass that starts from a result, or from a value computed from it, in the same function."""
    function = function_of(source, statement)
    derived = {name}
    later = [each for each in walk(function) if getattr(each, "lineno", 0) > statement.lineno]
    for each in sorted((n for n in later if isinstance(n, ast.Assign)), key=lambda n: n.lineno):
        names = {dotted_name(part) for part in nodes_in(each.value, ast.Name, ast.Attribute)}
        targets = {dotted_name(target) for target in each.targets}
        if names & derived:
            if _adds_other_terms(each.value, derived):
                return None
            derived |= targets
        else:
            derived -= targets
    calls = [each for each in later if isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute)]
    for each in sorted(calls, key=lambda n: n.lineno):
        owner = each.func.value  # type: ignore[attr-defined]
        if each.func.attr == "backward" and dotted_name(owner) in derived and not each.args:  # type: ignore[attr-defined]
            return each
    return None


def _adds_other_terms(value: ast.expr, derived: set[str]) -> bool:
    """Return True for a sum with a term that does not come from the result, and may have a graph."""
    if not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.Add | ast.Sub):
        return False
    for side in (value.left, value.right):
        names = {dotted_name(part) for part in nodes_in(side, ast.Name, ast.Attribute)}
        if not names & derived and not isinstance(side, ast.Constant):
            return True
    return False
