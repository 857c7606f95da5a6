"""Finds assignments that mix a new value into the one they replace: ``self.value = 0.9 * self.value + 0.1 * loss``."""

import ast
from typing import Any, Final

from trueloop.analysis.operations import Branch, Loop, Op
from trueloop.analysis.source_file import SourceFile
from trueloop.core.source_text import nodes_in, unparse

_MIXING: Final = frozenset(("lerp", "add", "sub", "mul", "div"))
"""Functions and methods whose result keeps the graphs of all their inputs."""


def keeps_old_value(source: SourceFile, store: Op) -> bool:
    """Return True if an assigned value is certainly computed, with its graph, from the value that it replaces."""
    statement, target = store.statement, store.node
    value = _assigned_value(statement, target)
    if value is None:
        return False
    own = {ast.unparse(target), *_aliases(store.function, ast.unparse(target))}
    return any(_is_own(each, target, own) and _reaches(source, each, value) for each in nodes_in(value, ast.expr))


def _assigned_value(statement: Any, target: ast.AST) -> ast.expr | None:
    """Return the expression that an assignment gives to one of its targets."""
    match statement:
        case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
            pairs = zip(targets, values, strict=False)
            return next((value for each, value in pairs if each is target), None)
        case ast.Assign(targets=[first], value=value) if first is target:
            return value
        case _:
            return None


def _aliases(function: Any, path: str) -> set[str]:
    """Return the local variables that are only another name of a path: ``old = self.value``."""
    assigned = nodes_in(function, ast.Assign) if function is not None else ()
    names = [target.id for each in assigned for target in each.targets if isinstance(target, ast.Name)]
    return {
        each.targets[0].id
        for each in assigned
        if isinstance(each.targets[0], ast.Name)
        and ast.unparse(each.value) == path
        and names.count(each.targets[0].id) == 1
    }


def _is_own(node: ast.expr, target: ast.expr, own: set[str]) -> bool:
    """Return True for an expression that reads the target: ``self.value``, ``old`` or ``sums.get(key, 0.0)``."""
    match node, target:
        case ast.Call(func=ast.Attribute(value=owner, attr="get"), args=[key, *_]), ast.Subscript():
            return f"{ast.unparse(owner)}[{ast.unparse(key)}]" in own
        case ((ast.Name() | ast.Attribute() | ast.Subscript()), _):
            return ast.unparse(node) in own
        case _:
            return False


def _reaches(source: SourceFile, node: ast.expr, value: ast.expr) -> bool:
    """Return True if all operations between a part of a value and the value itself keep its graph."""
    while node is not value:
        parent: Any = source.parents.get(id(node))
        match parent:
            case ast.BinOp(op=ast.Add() | ast.Sub() | ast.Mult() | ast.Div()) | ast.UnaryOp(op=ast.USub()):
                node = parent
            case ast.IfExp() if node is not parent.test:
                node = parent
            case ast.Call(func=ast.Attribute(attr=name)) if name in _MIXING:
                node = parent
            case ast.Attribute(attr=name) if name in _MIXING:  # of a method
                node = parent
            case _:
                return False
    return True


def is_first(store: Op, loop: Loop, path: str) -> bool:
    """Return True if a value is stored only where there is none yet: ``if self.value is None``, ``if key not in sums``.

    This is also the case for a flag that the same block sets, and for a count that is 0.
    """
    branches = store.conditions(loop)
    test = branches[-1].node.test if branches and isinstance(branches[-1].node, ast.If) else None
    if test is None:
        return False
    block = branches[-1].node.body if branches[-1].arm == 0 else branches[-1].node.orelse
    match test:
        case ast.Compare(ops=[ast.Is() | ast.IsNot() | ast.In() | ast.NotIn()]):
            return any(ast.unparse(each) == path for each in nodes_in(test, ast.expr))
        case ast.Compare(ops=[ast.Eq()], comparators=[ast.Constant(value=0)], left=ast.Name() | ast.Attribute()):
            return True
        case ast.UnaryOp(op=ast.Not(), operand=flag) | (ast.Name() as flag) | (ast.Attribute() as flag):
            named = [each for one in block for each in nodes_in(one, ast.Attribute, ast.Name)]
            return any(isinstance(each.ctx, ast.Store) and ast.unparse(each) == ast.unparse(flag) for each in named)
        case _:
            return False


def is_after_first(source: SourceFile, store: Op, branch: Branch, loop: Loop, path: str) -> bool:
    """Return True for a condition whose other arm stores the first value."""
    for each in source.ops_in_loop(loop, store.kind, root=store.entry_point):
        is_same = each.name == store.name and unparse(each.node) == unparse(store.node)
        if is_same and is_first(each, loop, path) and each.conditions(loop)[-1].node is branch.node:
            return True
    return False
