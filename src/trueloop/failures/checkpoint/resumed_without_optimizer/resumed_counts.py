"""Finds out whether a program goes on counting at the epoch or step that it reads from a checkpoint."""

import ast
import re
from collections.abc import Iterable, Iterator
from typing import Final

from trueloop.core.source_text import nodes_in, walk

COUNTERS: Final = frozenset(("epoch", "epochs", "start_epoch", "step", "steps", "global_step", "iteration", "iter"))
"""Keys of a checkpoint that only a resumed run reads."""
_ON_PURPOSE: Final = re.compile(r"fine_?tun|(reset|skip|no|load|resume)_?\w*optim", re.IGNORECASE)
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def continues_count(tree: ast.Module, line: int) -> bool:
    """Return True if a loop starts at a number that is read in the function or module part around a line.

    ``for epoch in range(checkpoint["epoch"], epochs)``, also if the number passes through variables, attributes and
    returned values of the same file. False if the function is about fine-tuning, or resets the optimizer by choice.

    Args:
        tree: syntax tree of a file.
        line: line that loads a state of the checkpoint.
    """
    functions = [each for each in walk(tree) if isinstance(each, _Function)]
    around = [each for each in functions if each.lineno <= line <= (each.end_lineno or 0)]
    scope = around[-1] if around else tree
    if around and _ON_PURPOSE.search(ast.unparse(scope)):
        return False
    statements = [each for each in _own_nodes(scope) if isinstance(each, ast.stmt)]
    names = set[str]()
    for statement in statements:
        if any(map(_reads_counter, _own_nodes(statement))):
            names |= _targets(statement)
            if isinstance(statement, ast.Return) and isinstance(scope, _Function):
                names |= {name for call in _calls_of(tree, scope.name) for name in _targets(call)}
            if isinstance(statement, ast.For) and any(map(_reads_counter, walk(statement.iter))):
                return True
    return bool(names) and any(_starts_at(each, names) for each in walk(tree))


def _own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function, a module or a statement, without those of functions and classes within it."""
    pending = list(ast.iter_child_nodes(scope))
    while pending:
        node = pending.pop()
        if not isinstance(node, _Function | ast.ClassDef):
            yield node
            pending += ast.iter_child_nodes(node)


def _reads_counter(node: ast.AST) -> bool:
    match node:
        case ast.Subscript(slice=ast.Constant(value=key), ctx=ast.Load()):
            return key in COUNTERS
        case ast.Call(func=ast.Attribute(attr="get" | "pop"), args=[ast.Constant(value=key), *_]):
            return key in COUNTERS
        case _:
            return False


def _targets(statement: ast.stmt) -> set[str]:
    """Return the last names of what a statement assigns: "start" for ``self.start = ...``."""
    targets: Iterable[ast.expr] = ()
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, ast.AnnAssign | ast.AugAssign):
        targets = (statement.target,)
    return {name for target in targets for name in _names(target)}


def _names(node: ast.AST) -> set[str]:
    return {
        each.id if isinstance(each, ast.Name) else each.attr
        for each in nodes_in(node, ast.Name, ast.Attribute)
        if getattr(each, "id", "") != "self"
    }


def _calls_of(tree: ast.Module, function: str) -> Iterator[ast.stmt]:
    """Yield the assignments whose value calls a function or method."""
    for each in nodes_in(tree, ast.Assign):
        if isinstance(each.value, ast.Call) and function in _names(each.value.func):
            yield each


def _starts_at(node: ast.AST, names: set[str]) -> bool:
    """Return True for ``range(start, end)``, ``count(start)`` or ``while start < end`` with one of these names."""
    match node:
        case ast.Call(func=ast.Name(id="range" | "trange"), args=[first, _, *_]):
            return not names.isdisjoint(_names(first))
        case ast.Call(func=ast.Name(id="count") | ast.Attribute(attr="count"), args=[first, *_]):
            return not names.isdisjoint(_names(first))
        case ast.While(test=ast.Compare(left=left)):
            return not names.isdisjoint(_names(left))
        case _:
            return False
