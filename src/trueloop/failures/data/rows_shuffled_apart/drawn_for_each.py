"""Finds loops and comprehensions over arrays that belong together, each of which goes through an order of its own."""

import ast
from collections.abc import Container, Iterator
from typing import Any, Final, NamedTuple

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.class_instances import called_function, definitions
from trueloop.analysis.queries.possible_values import origins, parameters_of
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import nodes_in
from trueloop.failures.data.rows_shuffled_apart.row_orders import (
    EXPERIMENT,
    GENERATORS,
    SEEDS,
    are_inputs_and_labels,
    shuffling_functions,
)

_DRAWING: Final = frozenset(("randperm", "permutation"))
_OF_ARRAY: Final = frozenset(("permutation", "shuffle", "sample"))
_MAX_DEPTH: Final = 3


class _Each(NamedTuple):
    """What is done with each of several arrays."""

    node: ast.AST
    """The loop, comprehension or ``map``."""
    item: str
    """The variable of an array, or of its key."""
    done: list[ast.expr]
    iterable: ast.expr


def find_drawn_for_each(source: SourceFile) -> Iterator[Hit]:
    """Yield each call that draws another order for each of several arrays, which are inputs and labels."""
    shuffling = set(shuffling_functions(source)) | _OF_ARRAY
    for each in _loops(source):
        draw = next((call for done in each.done for call in _draws(done, each.item, shuffling)), None)
        name = getattr(function_of(source, each.node), "name", "")
        if draw is None or EXPERIMENT.search(name) or _is_seeded(each.node):
            continue
        if _is_pair(_items(source, each.iterable)) or any(map(_is_pair, _unpacked(source, each.node))):
            yield Hit(
                message=f"`{ast.unparse(draw)}` draws another order for each of the arrays, whose rows belong "
                "together: samples get the labels of others.",
                node=draw,
            )


def _loops(source: SourceFile) -> Iterator[_Each]:
    for node in source.nodes_of(ast.ListComp, ast.GeneratorExp, ast.DictComp, ast.Call, ast.For):
        match node:
            case ast.For(target=ast.Name(id=item), iter=iterable, body=body):
                yield _Each(
                    node, item, [each.value for each in body if isinstance(each, ast.Assign | ast.Expr)], iterable
                )
            case ast.Call(func=ast.Name(id="map"), args=[ast.Lambda(args=arguments, body=done), iterable]):
                yield _Each(node, arguments.args[0].arg if arguments.args else "", [done], iterable)
            case ast.ListComp(elt=done, generators=[one]) | ast.GeneratorExp(elt=done, generators=[one]):
                yield _Each(node, getattr(one.target, "id", ""), [done], one.iter)
            case ast.DictComp(value=done, generators=[ast.comprehension(target=ast.Tuple(elts=[_, item])) as one]):
                yield _Each(node, getattr(item, "id", ""), [done], one.iter)
            case _:
                pass


def _draws(node: ast.expr, item: str, shuffling: Container[str]) -> Iterator[ast.Call]:
    """Yield the calls that draw an order for the rows of one array: ``a[torch.randperm(len(a))]``, ``shuffled(a)``."""
    for each in nodes_in(node, ast.Call):
        if last_name(each.func) in shuffling and each.args and _is_item(each.args[0], item):
            yield each
    for each in nodes_in(node, ast.Subscript):
        rows = each.slice.elts[0] if isinstance(each.slice, ast.Tuple) and each.slice.elts else each.slice
        if _is_item(each.value, item):
            yield from (call for call in nodes_in(rows, ast.Call) if last_name(call.func) in _DRAWING)


def _is_item(node: ast.expr, item: str) -> bool:
    """Return True for the variable of an array, or an item of a dictionary by its key."""
    key = node.slice if isinstance(node, ast.Subscript) else node
    return item != "" and isinstance(key, ast.Name) and key.id == item


def _is_seeded(node: ast.AST) -> bool:
    """Return True if the same order may be drawn each time, from a seed."""
    calls = nodes_in(node, ast.Call)
    options = {word.arg for each in calls for word in each.keywords}
    return bool(options & {"random_state", "seed"}) or any(last_name(each.func) in SEEDS | GENERATORS for each in calls)


def _items(source: SourceFile, iterable: ast.expr) -> list[ast.expr]:
    """Return the arrays, or the keys of the dictionary, that an iterable consists of; [] if unknown."""
    if isinstance(iterable, ast.Call) and isinstance(iterable.func, ast.Attribute):
        iterable = iterable.func.value  # arrays.items()
    for each in origins(source, iterable):
        if isinstance(each, ast.Tuple | ast.List):
            return [_named(item) for item in each.elts]
        if isinstance(each, ast.Dict):
            return [_named(key) for key in each.keys if key is not None]
    return []


def _named(node: ast.expr) -> ast.expr:
    """Return a key of a dictionary as a variable of this name."""
    is_key = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return ast.Name(node.value, ast.Load()) if is_key else node  # type: ignore[attr-defined]


def _is_pair(arrays: list[ast.expr]) -> bool:
    pairs = [(first, second) for first in arrays for second in arrays if first is not second]
    return any(are_inputs_and_labels(first, second) for first, second in pairs)


def _unpacked(source: SourceFile, node: Any, depth: int = _MAX_DEPTH) -> Iterator[list[ast.expr]]:
    """Yield the variables, or parameters, that get the items of a result."""
    parent: Any = source.parents.get(id(node)) if depth else None
    match parent:
        case ast.Assign(targets=[ast.Tuple(elts=names)]):
            yield names
        case ast.Assign(targets=[ast.Name(id=name)]):
            used = [each for each in nodes_in(function_of(source, node), ast.Name) if each.id == name]
            for each in (each for each in used if isinstance(each.ctx, ast.Load)):
                yield from _unpacked(source, each, depth - 1)
        case ast.Return():
            function = function_of(source, node)
            for call in definitions(source).calls.get(getattr(function, "name", ""), []):
                yield from _unpacked(source, call, depth - 1)
        case ast.Call(func=ast.Name(id="list" | "tuple")):
            yield from _unpacked(source, parent, depth)
        case ast.Starred():
            call: Any = source.parents.get(id(parent))
            function = called_function(source, call) if isinstance(call, ast.Call) else None
            yield [ast.Name(each.arg, ast.Load()) for each in parameters_of(function)] if function is not None else []
        case _:
            pass
