"""Finds views that split merged dimensions in the other order, or exchange the first two by names of their sizes."""

import ast
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import assigned_pairs, function_of
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import integer, nodes_in

_CUTS: Final = frozenset(("view", "reshape"))
SAME_ORDER: Final = frozenset((
    "contiguous", "float", "half", "double", "clone", "detach", "to", "cuda", "cpu", "relu", "gelu", "tanh", "sigmoid",
    "dropout", "squeeze", "type", "leaky_relu", "silu", "elu", "normalize",
))  # fmt: skip
"""Functions and methods whose result has the sizes of their object or first argument."""
_MAX_DEPTH: Final = 24

_Layout = list[tuple[str, ...]]
"""For each of the first dimensions of a tensor the sizes that were merged into it, in the order of the memory."""


def find_merged_sizes(source: SourceFile, reported: set[int]) -> Iterator[Hit]:
    """Yield each ``view(frames, batch, ...)`` of (batch, frames, ...), or of (batch * frames, ...) made from it."""
    for call in source.all_calls:
        if not isinstance(call.func, ast.Attribute) or call.func.attr not in _CUTS or id(call) in reported:
            continue
        shape = sizes_of(call)
        function = function_of(source, call)
        if len(shape) < 3 or not isinstance(function, ast.FunctionDef):
            continue
        sizes = [_size(source, function, each) for each in shape]
        for layout in _layouts(source, function, call.func.value, _MAX_DEPTH):
            order = [each for part in layout for each in part][:2]
            if (
                len(order) == 2
                and all(each in sizes for each in order)
                and sizes.index(order[1]) < sizes.index(order[0])
            ):
                second, first = (ast.unparse(shape[sizes.index(each)]) for each in (order[1], order[0]))
                yield Hit(
                    message=f"`{ast.unparse(call)}` does not exchange dimensions: the rows are in the order `({first}, "
                    f"{second})`, so each new row has numbers of several old ones. Split them in this order, and "
                    "exchange them by `transpose(0, 1)`.",
                    node=call,
                )
                break


def sizes_of(call: ast.Call) -> list[ast.expr]:
    """Return the sizes that a call gets one by one or as a list."""
    if len(call.args) == 1 and isinstance(call.args[0], ast.Tuple | ast.List):
        return call.args[0].elts
    return call.args


def _size(source: SourceFile, function: Any, node: ast.expr, depth: int = 3) -> str:
    """Return a name for a size that is the same for ``x.size(0)`` and a variable that holds it; "" if unknown."""
    match node:
        case (
            ast.Call(func=ast.Attribute(value=ast.Name(id=owner), attr="size"), args=[position])
            | ast.Subscript(value=ast.Attribute(value=ast.Name(id=owner), attr="shape"), slice=position)
        ):
            number = integer(position)
            return f"{owner}@{_version(source, function, owner, node)}#{number}" if number is not None else ""
        case ast.Call(func=ast.Name(id="len"), args=[ast.Name(id=owner)]):
            return f"{owner}@{_version(source, function, owner, node)}#0"
        case ast.Name(id=name):
            stores = _stores(source, function, name)
            if len(stores) == 1 and depth:
                return _size_of_variable(source, function, name, stores[0], depth)
            return name if not stores else ""
        case ast.Attribute():
            return ast.unparse(node)
        case _:
            return ""


def _size_of_variable(source: SourceFile, function: Any, name: str, statement: ast.stmt, depth: int) -> str:
    """Return the size that the only assignment of a variable gives it."""
    if not isinstance(statement, ast.Assign):
        return ""
    for target, value in assigned_pairs(statement):
        if isinstance(target, ast.Name) and target.id == name:
            return _size(source, function, value, depth - 1) or name
        if isinstance(target, ast.Tuple):
            names = [getattr(each, "id", "") for each in target.elts]
            owner = _measured(value)
            if (
                name in names
                and owner
                and not any(isinstance(e, ast.Starred) for e in target.elts[: names.index(name)])
            ):
                return f"{owner}@{_version(source, function, owner, value)}#{names.index(name)}"
    return name


def _measured(value: ast.expr) -> str:
    """Return the tensor of ``x.shape``, ``x.shape[:2]`` or ``x.size()``."""
    match value:
        case ast.Subscript(value=inner, slice=ast.Slice(lower=None)):
            return _measured(inner)
        case ast.Attribute(value=ast.Name(id=owner), attr="shape"):
            return owner
        case ast.Call(func=ast.Attribute(value=ast.Name(id=owner), attr="size"), args=[]):
            return owner
        case _:
            return ""


def _stores(source: SourceFile, function: Any, name: str) -> list[Any]:
    """Return the statements of a function that assign a variable, in order."""
    nodes = [each for each in nodes_in(function, ast.Name) if each.id == name and isinstance(each.ctx, ast.Store)]
    return sorted((source.statement_of(each) for each in nodes), key=lambda statement: statement.lineno)


def _version(source: SourceFile, function: Any, name: str, node: ast.expr) -> int:
    """Return the line of the latest assignment of a variable before an expression; 0 for an argument."""
    line = source.statement_of(node).lineno
    return max((each.lineno for each in _stores(source, function, name) if each.lineno < line), default=0)


def _layouts(source: SourceFile, function: Any, node: ast.expr, depth: int) -> Iterator[_Layout]:
    """Yield what is known about the first dimensions of a tensor."""
    if not depth:
        return
    match node:
        case ast.Name():
            yield from _layouts_of_variable(source, function, node, depth)
        case ast.Call(func=ast.Attribute(value=owner, attr=method)) if method in _CUTS:
            yield from _layouts_of_view(source, function, owner, node, depth)
        case ast.Call(func=ast.Attribute(value=owner, attr="flatten"), args=[start, *_]):
            for layout in _layouts(source, function, owner, depth - 1):
                yield [_joined(layout), *layout[2:]] if integer(start) == 0 and len(node.args) == 2 else layout
        case ast.Call(func=ast.Attribute(value=owner, attr=method)) if method in SAME_ORDER and not _is_library(owner):
            yield from _layouts(source, function, owner, depth - 1)
        case ast.Call(args=[inner, *others]):
            yield from _layouts_of_result(source, function, node, inner, others, depth)
        case _:
            pass


def _layouts_of_variable(source: SourceFile, function: Any, node: ast.Name, depth: int) -> Iterator[_Layout]:
    """Yield the layouts of a variable: its own two first sizes, and those of what was assigned to it."""
    name, line = node.id, source.statement_of(node).lineno
    before = [each for each in _stores(source, function, name) if each.lineno < line]
    latest = before[-1] if before else None
    if latest is not None and not _is_certain(source, latest, node):
        return
    version = latest.lineno if latest is not None else 0
    yield [(f"{name}@{version}#0",), (f"{name}@{version}#1",)]
    for target, value in assigned_pairs(latest) if isinstance(latest, ast.Assign) else ():
        if isinstance(target, ast.Name) and target.id == name:
            yield from _layouts(source, function, value, depth - 1)


def _layouts_of_result(
    source: SourceFile, function: Any, call: ast.Call, inner: ast.expr, others: list[ast.expr], depth: int
) -> Iterator[_Layout]:
    """Yield the layouts of ``F.relu(x)``, and of ``module(x)`` if the module gets one row for each pair of sizes."""
    name, layouts = last_name(call.func), _layouts(source, function, inner, depth - 1)
    if name == "flatten" and others:
        positions = [integer(each) for each in others]
        yield from ([_joined(each)] if positions == [0, 1] else each for each in layouts if positions[0] is not None)
    elif name in SAME_ORDER:
        yield from layouts
    elif (
        not others
        and isinstance(call.func, ast.Name | ast.Attribute)
        and not _is_library(getattr(call.func, "value", None))
    ):
        yield from (each for each in layouts if len(each[0]) == 2)


def _layouts_of_view(
    source: SourceFile, function: Any, owner: ast.expr, call: ast.Call, depth: int
) -> Iterator[_Layout]:
    """Yield the layouts after a view: of the sizes that it names, or of those that it merges."""
    shape = sizes_of(call)
    known = [_size(source, function, each) for each in shape[:2]]
    if len(known) == 2 and all(known) and not any(isinstance(each, ast.Starred) for each in shape[:2]):
        yield [(known[0],), (known[1],)]
    for layout in _layouts(source, function, owner, depth - 1):
        order = _joined(layout)
        if len(order) == 2 and shape and _merges(source, function, shape, order):
            yield [order]
        elif len(layout[0]) == 2 and len(known) == 2 and integer(shape[0]) == -1:
            yield layout  # the same rows, cut into smaller ones or flattened


def _merges(source: SourceFile, function: Any, shape: list[ast.expr], order: tuple[str, ...]) -> bool:
    """Return True if the first size of a view is the product of two others."""
    match shape:
        case [ast.BinOp(left=left, op=ast.Mult(), right=right), *_]:
            return {_size(source, function, left), _size(source, function, right)} == set(order)
        case [ast.UnaryOp(), ast.Starred(value=ast.Subscript(slice=ast.Slice(lower=lower, upper=None)))]:
            return integer(lower) == 2
        case [ast.UnaryOp(), *others]:
            owner = order[0].rpartition("#")[0]
            sizes = [_size(source, function, each) for each in others]
            return bool(sizes) and sizes == [f"{owner}#{number}" for number in range(2, 2 + len(sizes))]
        case [ast.Name() as first, *_]:
            return _is_product(source, function, first, order)
        case _:
            return False


def _is_product(source: SourceFile, function: Any, name: ast.Name, order: tuple[str, ...]) -> bool:
    stores = _stores(source, function, name.id)
    value = stores[0].value if len(stores) == 1 and isinstance(stores[0], ast.Assign) else None
    return isinstance(value, ast.BinOp) and _merges(source, function, [value], order)


def _joined(layout: _Layout) -> tuple[str, ...]:
    """Return the sizes of the first two dimensions, merged into one."""
    return tuple(each for part in layout for each in part)[:2]


def _is_certain(source: SourceFile, statement: ast.stmt, node: ast.expr) -> bool:
    """Return True if a statement is always executed before an expression."""
    around = source.parents.get(id(statement))
    parent: Any = source.parents.get(id(node))
    while parent is not None and parent is not around:
        parent = source.parents.get(id(parent))
    return parent is not None


def _is_library(owner: Any) -> bool:
    return isinstance(owner, ast.Name) and owner.id in ("torch", "F", "np", "einops", "functional", "numpy")
