"""What a name or an attribute was last seen to be given, where the text gives it something once only."""

from __future__ import annotations

import ast
from typing import Any, Final

from trueloop.analysis.source_file import SourceFile
from trueloop.core.source_text import encloses

FUNCTIONS: Final = ast.FunctionDef | ast.AsyncFunctionDef


def assigned_value(source: SourceFile, place: ast.AST, name: str) -> ast.expr | None:
    """Return what a name stands for in the function around a place; None where it is assigned never, or repeatedly.

    Args:
        source: the file.
        place: where it is read.
        name: of a variable.
    """
    within = enclosing_definition(source, place, FUNCTIONS)
    found = [value for to, value in _assignments(within) if isinstance(to, ast.Name) and to.id == name]
    if not found and not _is_argument(within, name):
        top = [each for each in source.tree.body if isinstance(each, ast.Assign)]
        found = [e.value for e in top for to in e.targets if isinstance(to, ast.Name) and to.id == name]
    return found[0] if len(found) == 1 else None


def attribute_value(source: SourceFile, place: ast.AST, name: str) -> ast.expr | None:
    """Return what ``self.name`` is in the class around a place: assigned once, or registered as a buffer."""
    within = enclosing_definition(source, place, ast.ClassDef)
    found = [value for to, value in _assignments(within) if isinstance(to, ast.Attribute) and to.attr == name]
    for each in ast.walk(within):
        if isinstance(each, ast.Call) and getattr(each.func, "attr", "") == "register_buffer" and len(each.args) > 1:
            word = each.args[0]
            found += [each.args[1]] if isinstance(word, ast.Constant) and word.value == name else []
    return found[0] if len(found) == 1 else None


def enclosing_definition(source: SourceFile, place: Any, kind: Any) -> Any:
    """Return the innermost definition of a kind around a place; the module where there is none."""
    found = source.tree
    nodes: list[Any] = source.nodes  # outer definitions before inner ones
    for each in nodes:
        if isinstance(each, kind) and encloses(each, place):
            found = each
    return found


def _assignments(within: ast.AST) -> list[tuple[ast.expr, ast.expr]]:
    return [(to, each.value) for each in ast.walk(within) if isinstance(each, ast.Assign) for to in each.targets]


def _is_argument(within: Any, name: str) -> bool:
    """True for an argument of a function."""
    return any(isinstance(each, ast.arg) and each.arg == name for each in ast.walk(getattr(within, "args", within)))
