"""Finds the variables of a loop over batches, and the statements that compute something from them."""

import ast
import re
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import BatchLoop
from trueloop.analysis.source_file import SourceFile, last_name
from trueloop.core.source_text import nodes_in

_SHOWING: Final = frozenset((
    "print", "log", "info", "debug", "warning", "write", "format", "set_postfix", "set_description", "add_scalar",
))  # fmt: skip
_SHAPE: Final = re.compile(r"\.shape\b|\.size\(|\blen\(")


def trains(node: ast.AST) -> bool:
    """Return True if a node contains a backward pass."""
    return any(last_name(each.func) == "backward" for each in nodes_in(node, ast.Call))


def stored_names(node: Any) -> set[str]:
    """Return the variables that a node assigns."""
    return {each.id for each in nodes_in(node, ast.Name) if isinstance(each.ctx, ast.Store)}


def derived_names(loop: BatchLoop) -> set[str]:
    """Return the variables of a loop that hold its batch, or what is computed from it."""
    found = stored_names(loop.node.target) - {loop.counter}
    for each in nodes_in(loop.node, ast.Assign):
        if not _SHAPE.search(ast.unparse(each.value)) and any(
            name.id in found for name in nodes_in(each.value, ast.Name)
        ):
            found |= {
                name
                for target in each.targets
                if isinstance(target, ast.Name | ast.Tuple)
                for name in stored_names(target)
            }
    return found


def computing_statement(source: SourceFile, node: ast.AST) -> ast.stmt | None:
    """Return the statement that computes something from a node; None if it only shows or tests it."""
    parent = source.parents.get(id(node))
    while parent is not None and not isinstance(parent, ast.stmt):
        if isinstance(parent, ast.JoinedStr) or (isinstance(parent, ast.Call) and last_name(parent.func) in _SHOWING):
            return None
        parent = source.parents.get(id(parent))
    is_computed = isinstance(parent, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Expr)
    return parent if is_computed and not _SHAPE.search(ast.unparse(parent)) else None
