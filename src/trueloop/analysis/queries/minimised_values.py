"""Finds the expressions from which a program computes the values that it minimises."""

import ast
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.possible_values import possible_values
from trueloop.analysis.source_file import SourceFile, last_name
from trueloop.core.source_text import dotted_name, nodes_in, walk

_STEPS: Final = frozenset(("training_step", "compute_loss"))
"""Methods that return the loss to a trainer of another library."""
_MAX_NODES: Final = 5000


@lru_cache(maxsize=1)  # rules of one file follow each other
def minimised(source: SourceFile) -> frozenset[int]:
    """Return the ids of all nodes in expressions from which a value is computed whose gradient the program takes.

    It follows variables, ``+=``, attributes, parameters and what functions of the program return.
    """
    return reached_from(source, _roots(source))


def reached_from(source: SourceFile, roots: Iterable[ast.AST]) -> frozenset[int]:
    """Return the ids of all nodes in some expressions, and in those from which their values are computed."""
    seen: set[int] = set()
    queue = list(roots)
    while queue and len(seen) < _MAX_NODES:
        for each in walk(queue.pop()):
            if id(each) in seen:
                continue
            seen.add(id(each))
            if isinstance(each, ast.Name | ast.Attribute | ast.Call):
                queue += possible_values(source, each)
            if isinstance(each, ast.Name | ast.Attribute):
                queue += added_values(source, each)
    return frozenset(seen)


def _roots(source: SourceFile) -> Iterator[ast.expr]:
    """Yield the values of ``loss.backward()`` and similar calls, and what a training step returns."""
    for call in source.all_calls:
        if isinstance(call.func, ast.Attribute) and call.func.attr == "backward":
            yield call.func.value
            yield from call.args[:1]
        elif last_name(call.func) == "grad" and call.args:
            yield call.args[0]
    for function in source.nodes_of(ast.FunctionDef):
        if function.name in _STEPS:
            yield from (each.value for each in nodes_in(function, ast.Return) if each.value is not None)


def added_values(source: SourceFile, node: Any) -> Iterator[ast.expr]:
    """Yield what a function adds to a variable or appends to a list."""
    name = dotted_name(node)
    for each in nodes_in(function_of(source, node), ast.AugAssign, ast.Call) if name else ():
        match each:
            case ast.AugAssign(target=target, value=value) if dotted_name(target) == name:
                yield value
            case ast.Call(func=ast.Attribute(attr="append", value=owner), args=[value]) if dotted_name(owner) == name:
                yield value
            case _:
                pass
