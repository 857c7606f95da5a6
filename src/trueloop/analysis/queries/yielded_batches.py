"""Finds what generators and iterators of the program yield, and which of it a variable gets."""

import ast
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.class_instances import definitions
from trueloop.analysis.queries.possible_values import loops_around, possible_values
from trueloop.analysis.queries.shuffled_loaders import Calls, Traced, function_called, traced
from trueloop.analysis.source_file import SourceFile, last_name
from trueloop.core.source_text import nodes_in

_PASSING: Final = frozenset((
    "tqdm", "iter", "list", "islice", "cycle", "track", "take", "prefetch", "progress_bar", "trange", "repeat",
))  # fmt: skip
"""Functions that yield the items of their first argument."""
_SPLITTING: Final = frozenset(("split", "chunk", "tensor_split", "array_split", "vsplit"))
_DEPTH: Final = 4


class Item(NamedTuple):
    """What a variable gets of an iterable: each item, or the part of each item at a position."""

    iterable: ast.expr
    position: int | None
    """None for the whole item."""


def items_of(source: SourceFile, node: ast.Name) -> Iterator[Item]:
    """Yield what a variable may get in a loop, from ``next(batches)``, or when a batch is unpacked."""
    for assignment in nodes_in(function_of(source, node), ast.Assign):
        position = _position(assignment.targets[0], node.id)
        if position is not None and assignment.lineno <= node.lineno:
            yield from _unpacked(source, assignment.value, position)
    for loop in loops_around(source, node):
        yield from _of_target(loop.target, loop.iter, node.id)


def _position(target: ast.expr, name: str) -> int | None:
    names = [getattr(each, "id", "") for each in getattr(target, "elts", ())]
    return names.index(name) if name in names else None


def _unpacked(source: SourceFile, value: ast.expr, position: int) -> Iterator[Item]:
    """Yield the iterables from which a value that is unpacked may come: ``next(it)``, or a batch of a loop."""
    if isinstance(value, ast.ListComp | ast.GeneratorExp):  # (each.to(device) for each in batch)
        value = value.generators[0].iter
    for each in (value, *possible_values(source, value)):
        if isinstance(each, ast.Call) and last_name(each.func) == "next" and each.args:
            yield Item(each.args[0], position)
    if isinstance(value, ast.Name):
        for loop in loops_around(source, value):
            yield from (e._replace(position=position) for e in _of_target(loop.target, loop.iter, value.id))


def _of_target(target: ast.expr, iterable: ast.expr, name: str) -> Iterator[Item]:
    """Yield what a variable gets from the target of a loop, through ``enumerate`` and ``zip``."""
    called = last_name(getattr(iterable, "func", None))
    arguments = iterable.args if isinstance(iterable, ast.Call) else []
    parts = target.elts if isinstance(target, ast.Tuple | ast.List) else []
    if called in _PASSING and arguments:
        yield from _of_target(target, arguments[0], name)
    elif called == "enumerate" and len(parts) == 2 and arguments:
        yield from _of_target(parts[1], arguments[0], name)
    elif called == "zip" and len(parts) == len(arguments):
        for part, argument in zip(parts, arguments, strict=True):
            yield from _of_target(part, argument, name)
    elif parts:
        position = _position(target, name)
        yield from [Item(iterable, position)] if position is not None else []
    elif isinstance(target, ast.Name) and target.id == name:
        yield Item(iterable, None)


def yielded(source: SourceFile, item: Item, calls: Calls, depth: int = _DEPTH) -> list[Traced]:
    """Return the expressions that an iterable of the program yields, or those at a position of them; [] if unknown.

    Args:
        source: the file.
        item: the iterable and the position.
        calls: the calls that lead to its function.
        depth: number of generators that are followed.
    """
    found: list[Traced] = []
    for each, path in traced(source, item.iterable, calls, _passed):
        if not isinstance(each, ast.Call) or not depth:
            continue
        if last_name(each.func) in _SPLITTING and item.position is None and (owner := _split(source, each)) is not None:
            found.append((owner, path))
        for value in _yields(source, each):
            if isinstance(value, ast.YieldFrom):
                found += yielded(source, item._replace(iterable=value.value), (*path, each), depth - 1)
            else:
                found += [(part, (*path, each)) for part in _parts(source, value, item.position)]
    return found


def _passed(node: ast.expr) -> ast.expr | None:
    is_passing = isinstance(node, ast.Call) and last_name(node.func) in _PASSING and bool(node.args)
    return node.args[0] if is_passing else None  # type: ignore[attr-defined]


def _split(source: SourceFile, call: ast.Call) -> ast.expr | None:
    """Return the tensor of ``x.split(32)`` and ``torch.split(x, 32)``, whose rows the parts are."""
    is_function = bool(source.qualified_name(call.func)) or not isinstance(call.func, ast.Attribute)
    return next(iter(call.args), None) if is_function else call.func.value  # type: ignore[attr-defined]


def _yields(source: SourceFile, call: ast.Call) -> Iterator[Any]:
    """Yield the ``yield`` statements of the generator, or of the iterable class, that a call creates."""
    definition: Any = definitions(source).classes.get(last_name(call.func))
    if definition is None:
        function = function_called(source, call)
        yield from nodes_in(function, ast.Yield, ast.YieldFrom) if function is not None else ()
        return
    for method in definition.body:
        if getattr(method, "name", "") == "__iter__":
            yield from nodes_in(method, ast.Yield, ast.YieldFrom)
        elif getattr(method, "name", "") == "__next__":
            yield from nodes_in(method, ast.Return)


def _parts(source: SourceFile, statement: ast.Yield | ast.Return, position: int | None) -> list[ast.expr]:
    """Return what a ``yield`` yields, or the part of it at a position."""
    value = statement.value
    if value is None or position is None:
        return [value] if value is not None else []
    values = [value, *possible_values(source, value)] if isinstance(value, ast.Name) else [value]
    return [part for e in values if isinstance(e, ast.Tuple | ast.List) for part in e.elts[position : position + 1]]
