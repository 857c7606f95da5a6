"""Finds names that are bound to a generator, which can be iterated only once."""

import ast
from functools import lru_cache
from typing import Any, Final

from trueloop.analysis.queries.loops import is_inside
from trueloop.analysis.source_file import SourceFile
from trueloop.core.source_text import dotted_name, nodes_in, walk

GENERATOR_FUNCTIONS: Final = frozenset(("builtins.filter", "builtins.map", "itertools.chain"))


def bound_once(tree: ast.Module, name: str, function: Any) -> ast.Assign | None:
    """Return the only assignment of a name that is visible in a function; None if there are several, or none.

    Args:
        tree: the file's syntax tree.
        name: a variable of the function or of the module, or an attribute: "self.weights".
        function: a definition; None = the module.
    """
    if not name:
        return None
    scope: ast.AST = tree
    if "." not in name and function is not None:
        if name in _arguments(function):
            return None
        scope = function if _stores(function, name) else tree
    stores = _stores(scope, name)
    if scope is tree and "." not in name:
        inner = _nodes_in_functions(tree)
        stores = [each for each in stores if each not in inner]
    assignments = [each for each in nodes_in(scope, ast.Assign) if each.targets == stores[:1]]
    return assignments[0] if len(stores) == 1 and len(assignments) == 1 else None


def is_generator(source: SourceFile, value: ast.expr) -> bool:
    """Return True for an expression whose value can be iterated only once."""
    if isinstance(value, ast.GeneratorExp):
        return True
    if not isinstance(value, ast.Call):
        return False
    is_parameters = isinstance(value.func, ast.Attribute) and value.func.attr == "parameters"
    return is_parameters or source.qualified_name(value.func) in GENERATOR_FUNCTIONS


def _stores(scope: ast.AST, name: str) -> list[Any]:
    return _stores_by_name(scope).get(name, [])


@lru_cache(maxsize=1024)
def _stores_by_name(scope: ast.AST) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for each in nodes_in(scope, ast.Name, ast.Attribute):
        if isinstance(each.ctx, ast.Store):
            found.setdefault(dotted_name(each), []).append(each)
    return found


def _arguments(function: Any) -> set[str]:
    arguments: ast.arguments = function.args
    return {each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}


@lru_cache(maxsize=1)  # rules of one file follow each other
def _nodes_in_functions(tree: ast.Module) -> frozenset[ast.AST]:
    functions = nodes_in(tree, ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node for function in functions for node in walk(function))


def innermost_function(tree: ast.Module, node: ast.AST) -> Any:
    """Return the innermost function that contains a node; None = the module."""
    functions = [each for each in nodes_in(tree, ast.FunctionDef, ast.AsyncFunctionDef) if is_inside(node, each)]
    return functions[-1] if functions else None  # outer functions come first
