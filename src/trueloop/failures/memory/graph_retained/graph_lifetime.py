"""Graphs that are made anew in every turn of a loop, as far as the text can be sure of it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import Any, Final

from trueloop.analysis.abstract_value import NO_GRAPH, PART, AbstractValue, ValueKind
from trueloop.analysis.operations import Loop, Op, OpKind
from trueloop.analysis.source_file import SourceFile
from trueloop.core.source_text import encloses

CUTTING: Final = frozenset(("detach", "detach_", "data", "item", "shape", "size", "device", "dtype"))
PLAIN: Final = (
    ValueKind.CONSTANT,
    ValueKind.NAME,
    ValueKind.LOSS,
    ValueKind.LOADER,
    ValueKind.DATASET,
    ValueKind.SCALER,
    ValueKind.PARAMETERS,
)


def fresh(source: SourceFile, root: AbstractValue, operation: Op, loop: Loop) -> bool:
    """True where all of the graph behind a root was surely made in the same turn of a loop.

    Args:
        source: of all.
        root: what the operation goes backward from.
        operation: in the loop, perhaps in a function called from it.
        loop: around it.
    """
    inside = [loop.node, *entered(source, operation.entry_point, loop)]
    queue, seen = [root], {id(root)}
    while queue:
        thing = queue.pop()
        if NO_GRAPH in thing.facts or thing.kind in PLAIN or _given_by(thing, loop, source):
            continue
        if not _made_inside(thing, inside) or len(seen) > 2000:
            return False
        for each in (*thing.sources, *thing.union) if thing.kind is not ValueKind.MODEL else ():
            if id(each) not in seen:
                seen.add(id(each))
                queue.append(each)
    return not any(_carries(node, inside, own=node is loop.node) for node in inside)


def entered(source: SourceFile, root: int, loop: Loop) -> list[Any]:
    """Return the functions of the file that a loop runs."""
    found: dict[int, Any] = {}
    for each in source.operations:
        if each.entry_point == root and each.within(loop):
            inner = {id(node) for node in found.values()}
            found.update({id(one): one for one in each.functions if id(one) not in inner})
    return [one for one in found.values() if not encloses(one, loop.node)]


def _given_by(thing: AbstractValue, loop: Loop, source: SourceFile) -> bool:
    """True for what the loop goes through, and for what ``next`` takes: data."""
    node = thing.node
    if isinstance(node, ast.Call):
        return source.name(node.func) in ("builtins.next", "builtins.enumerate", "builtins.zip")
    return node is loop.node or node is getattr(loop.node, "iter", None)


def _made_inside(thing: AbstractValue, inside: Iterable[Any]) -> bool:
    match thing.kind:
        case ValueKind.MODEL:  # one of whose class nothing is known may keep a state
            return bool(thing.name) or PART in thing.facts
        case ValueKind.TENSOR | ValueKind.SEQUENCE:
            return thing.node is None or any(encloses(each, thing.node) for each in inside)
        case _:
            parts = isinstance(thing.node, ast.BinOp | ast.Subscript | ast.Name | ast.Attribute)
            return parts and bool(thing.sources) and not thing.union


def _carries(node: ast.AST, inside: list[Any], *, own: bool) -> bool:
    """True where something is read before it is written in the same piece of text: what it was in the turn before."""
    loads = dict[str, tuple[int, int]]()
    elsewhere = {path for each in inside if each is not node for path, _ in _read(each)}
    for path, place in _read(node):
        loads[path] = min(place, loads.get(path, place))
    for path, place, value in _written(node):
        kept = "." in path  # names of a function are its own, those of a loop and all attributes stay
        if (not own and not kept) or _no_graph(value):
            continue
        if path in loads and loads[path] <= place:
            return True
        if kept and path not in loads and path in elsewhere:
            return True
    return any(isinstance(each, ast.Global | ast.Nonlocal) for each in ast.walk(node))


def _read(node: ast.AST) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield the names and attributes that are read other than to be cut off, each with its place."""
    cut = {id(each.value) for each in ast.walk(node) if isinstance(each, ast.Attribute) and each.attr in CUTTING}
    for each in ast.walk(node):
        if isinstance(each, ast.Name | ast.Attribute) and isinstance(each.ctx, ast.Load) and id(each) not in cut:
            yield ast.unparse(each), (each.end_lineno or 0, each.end_col_offset or 0)


def _written(node: ast.AST) -> Iterator[tuple[str, tuple[int, int], ast.AST | None]]:
    """Yield what is assigned, with the end of the assignment and the value."""
    for each in ast.walk(node):
        if isinstance(each, ast.Assign | ast.AnnAssign | ast.NamedExpr | ast.AugAssign):
            targets = each.targets if isinstance(each, ast.Assign) else [each.target]
            for target in targets:
                for part in ast.walk(target):
                    if isinstance(part, ast.Name | ast.Attribute) and not isinstance(part.ctx, ast.Load):
                        if isinstance(each, ast.AugAssign) and not _no_graph(each.value):
                            yield ast.unparse(part), (1 << 30, 0), each.value
                        yield ast.unparse(part), (each.end_lineno or 0, each.end_col_offset or 0), each.value


def _no_graph(value: ast.AST | None) -> bool:
    """True for a number, by its form."""
    if isinstance(value, ast.Constant) or value is None:
        return True
    if isinstance(value, ast.Call):
        name = value.func.attr if isinstance(value.func, ast.Attribute) else getattr(value.func, "id", "")
        return name in {*CUTTING, "len", "float", "int", "tolist", "time", "perf_counter"}
    return isinstance(value, ast.BinOp) and _no_graph(value.right) and _no_graph(value.left)


def shares(one: AbstractValue, others: Iterable[AbstractValue], source: SourceFile) -> bool:
    """True where the graphs behind two things may have a part in common, other than models and data."""
    mine = {
        id(each)
        for each in one.autograd_graph()
        if each.kind in (ValueKind.TENSOR, ValueKind.UNKNOWN, ValueKind.SEQUENCE)
    }
    data = {id(each.over) for operation in source.ops(OpKind.BACKWARD) for each in operation.loops}
    return any(id(each) in mine - data for other in others for each in other.autograd_graph())
