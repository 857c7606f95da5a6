"""Finds the parts of the data that a loop or comprehension goes through, by what it lists or where its results go."""

import ast
from typing import Any

from trueloop.analysis.queries.batch_loops import function_of, single_assignments
from trueloop.analysis.queries.class_instances import definitions
from trueloop.analysis.queries.possible_values import loops_around
from trueloop.analysis.source_file import SourceFile
from trueloop.core.source_text import dotted_name, encloses, nodes_in, walk


def listed_parts(source: SourceFile, node: ast.expr, names: set[str]) -> list[ast.expr] | None:
    """Return what a variable of a loop around a node stands for; None if no loop sets one of the variables.

    These are the values that the loop lists, with words as names, and the variables to which it unpacks the results.
    """
    for loop in loops_around(source, node):
        if names & {each.id for each in nodes_in(loop.target, ast.Name)}:
            items = loop.iter.elts if isinstance(loop.iter, ast.Tuple | ast.List) else []
            return [*map(_named, items), *_unpacked(source, node, loop)]
    return None


def _named(item: ast.expr) -> ast.expr:
    """Return a name for a word: "test" is called like the variable ``test``."""
    is_word = isinstance(item, ast.Constant) and isinstance(item.value, str)
    return ast.copy_location(ast.Name(item.value), item) if is_word else item  # type: ignore[union-attr]


def _unpacked(source: SourceFile, node: ast.expr, loop: ast.AST) -> list[ast.expr]:
    """Return the variables into which the list of the results is unpacked, in the function or by its callers."""
    function, statement = function_of(source, node), source.statement_of(node)
    made: Any = source.parents.get(id(loop)) if isinstance(loop, ast.comprehension) else None
    match statement:
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr="append", value=owner))) if made is None:
            name = dotted_name(owner)
        case ast.Assign(targets=[ast.Name(id=name)], value=value) if value is made:
            pass
        case _:
            name = ""
    found = [
        target
        for target, value in single_assignments(function)
        if (value is made and made is not None) or (name and dotted_name(value) == name)
    ]
    results = [each.value for each in nodes_in(function, ast.Return) if each.value is not None]
    if any(encloses(each, node) or (name and _mentions(each, name)) for each in results):
        for call in definitions(source).calls.get(getattr(function, "name", ""), []):
            found += getattr(source.parents.get(id(call)), "targets", [])
    return [part for each in found if isinstance(each, ast.Tuple | ast.List) for part in each.elts]


def _mentions(node: ast.expr, name: str) -> bool:
    return any(dotted_name(each) == name for each in walk(node))
