"""Finds the values of variables and attributes that are assigned only once."""

import ast
from collections.abc import Container
from functools import lru_cache
from typing import Any, Final

from trueloop.analysis.source_file import SourceFile
from trueloop.core.source_text import dotted_name, encloses, nodes_in

FUNCTIONS: Final = ast.FunctionDef | ast.AsyncFunctionDef


def assigned_value(source: SourceFile, node: ast.AST, name: str) -> ast.expr | None:
    """Return the value of a variable that a node reads; None unless the variable is assigned exactly once.

    Args:
        source: the file.
        node: the node that reads the variable.
        name: name of the variable.
    """
    definition = enclosing_definition(source, node, FUNCTIONS)
    values = [value for target, value in _assignments(definition) if isinstance(target, ast.Name) and target.id == name]
    if not values and not _is_parameter(definition, name):
        top_level = [each for each in source.tree.body if isinstance(each, ast.Assign)]
        values = [e.value for e in top_level for target in e.targets if getattr(target, "id", None) == name]
    return values[0] if len(values) == 1 else None


def attribute_value(source: SourceFile, node: ast.AST, name: str) -> ast.expr | None:
    """Return the value of ``self.name`` in the class around a node; None unless the class sets it exactly once."""
    definition = enclosing_definition(source, node, ast.ClassDef)
    values = _attribute_values(definition).get(name, [])
    return values[0] if len(values) == 1 else None


@lru_cache(maxsize=1024)
def _attribute_values(definition: ast.AST) -> dict[Any, list[ast.expr]]:
    """Return what a class assigns to each attribute, or registers as a buffer."""
    found: dict[Any, list[ast.expr]] = {}
    for target, value in _assignments(definition):
        if isinstance(target, ast.Attribute):
            found.setdefault(target.attr, []).append(value)
    for each in nodes_in(definition, ast.Call):
        if getattr(each.func, "attr", "") == "register_buffer" and len(each.args) > 1:
            key = each.args[0]
            if isinstance(key, ast.Constant):
                found.setdefault(key.value, []).append(each.args[1])
    return found


def is_assigned_between(function: Any, names: Container[str], first: int, last: int) -> bool:
    """Return True if a variable or attribute of some names gets another value between two lines of a function."""
    return any(
        first < each.lineno < last
        and not isinstance(getattr(each, "ctx", None), ast.Load)
        and dotted_name(each) in names
        for each in nodes_in(function, ast.Name, ast.Attribute)
    )


def enclosing_definition(source: SourceFile, node: Any, kind: Any) -> Any:
    """Return the innermost definition around a node that has the type ``kind``; the module if there is none."""
    around = node
    while around is not None and not (isinstance(around, kind) and encloses(around, node)):
        around = source.parents.get(id(around))
    return source.tree if around is None else around


def _assignments(definition: ast.AST) -> list[tuple[ast.expr, ast.expr]]:
    found: list[tuple[ast.expr, ast.expr]] = []
    for each in list(nodes_in(definition, ast.Assign)):
        for target in each.targets:
            found.append((target, each.value))
            if isinstance(target, ast.Tuple) and isinstance(each.value, ast.Tuple):  # a, b = 1, 2
                found += zip(target.elts, each.value.elts, strict=False)
    return found


def _is_parameter(definition: Any, name: str) -> bool:
    """Return True if a name is a parameter of a function."""
    return any(each.arg == name for each in nodes_in(getattr(definition, "args", definition), ast.arg))
