"""Tells samplers, whose next inputs are computed from the model's outputs, from evaluations on data."""

import ast

from trueloop.core.findings import SourceLocation
from trueloop.core.source_text import dotted_name
from trueloop.tracing.source_calls import tree_of

MAX_CALLERS = 2  # functions around the call of the model whose callers are read


def is_fed_back(place: SourceLocation) -> bool:
    """Return True if a loop around a call of a model computes the inputs of its next call from the outputs.

    Args:
        place: line of the call of the model, in a loop, or in a function that a loop of this file calls.
    """
    tree = tree_of(place.path)
    return tree is not None and _is_fed_back(tree, place.line, MAX_CALLERS)


def _is_fed_back(tree: ast.Module, line: int, depth: int) -> bool:
    around = [each for each in ast.walk(tree) if _spans(each, line)]
    loops = [each for each in around if isinstance(each, ast.For | ast.While)]
    functions = [each for each in around if isinstance(each, ast.FunctionDef)]
    inner = max(functions, key=lambda each: each.lineno, default=None)
    if any(_carries(loop, line) for loop in loops if inner is None or loop.lineno > inner.lineno):
        return True
    if inner is None or not depth:
        return False
    calls = (
        each
        for each in ast.walk(tree)
        if isinstance(each, ast.Call) and dotted_name(each.func).rpartition(".")[2] == inner.name
    )
    return any(_is_fed_back(tree, call.lineno, depth - 1) for call in calls if not _spans(inner, call.lineno))


def _spans(node: ast.AST, line: int) -> bool:
    return isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or node.lineno)


def _carries(loop: ast.For | ast.While, line: int) -> bool:
    """Return True if an argument of a call in this line is computed from its result later in the loop."""
    statements = sorted(
        (each for each in ast.walk(loop) if isinstance(each, ast.Assign | ast.AugAssign | ast.AnnAssign)),
        key=lambda each: each.lineno,
    )
    before = _names(loop.target, ast.Store) if isinstance(loop, ast.For) else set[str]()
    before |= {name for each in statements if (each.end_lineno or 0) < line for name in _names(each, ast.Store)}
    given: set[str] = set()
    from_outputs: set[str] = set()
    for statement in statements:
        if _spans(statement, line):
            calls = [each for each in ast.walk(statement) if isinstance(each, ast.Call)]
            given |= {name for call in calls for argument in call.args for name in _names(argument, ast.Load)}
            from_outputs |= _names(statement, ast.Store)
        elif statement.lineno > line and from_outputs & _names(statement, ast.Load):
            from_outputs |= _names(statement, ast.Store)
    return bool(given & from_outputs - before)


def _names(node: ast.AST, context: type[ast.expr_context]) -> set[str]:
    """Return the variables that a node reads (``ast.Load``) or assigns (``ast.Store``)."""
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, context)}
