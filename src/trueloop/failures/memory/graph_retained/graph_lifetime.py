"""Decides from the source code whether a loop builds a new graph in every iteration."""

import ast
from collections.abc import Iterable, Iterator
from typing import Any, Final

from trueloop.analysis.abstract_value import NO_GRAPH, SUBMODULE, AbstractValue, ValueKind
from trueloop.analysis.operations import Loop, Op, OpKind
from trueloop.analysis.source_file import SourceFile
from trueloop.core.source_text import encloses, nodes_in

DETACHING_ATTRIBUTES: Final = frozenset(("detach", "detach_", "data", "item", "shape", "size", "device", "dtype"))
GRAPHLESS_KINDS: Final = (
    ValueKind.CONSTANT,
    ValueKind.NAME,
    ValueKind.LOSS,
    ValueKind.LOADER,
    ValueKind.DATASET,
    ValueKind.SCALER,
    ValueKind.PARAMETERS,
)


def is_built_each_iteration(source: SourceFile, root: AbstractValue, operation: Op, loop: Loop) -> bool:
    """Return True if the full graph of a root is built in the same iteration of a loop.

    Args:
        source: the file.
        root: the value that the backward pass starts from.
        operation: the backward pass, in the loop or in a function called from it.
        loop: the loop around it.
    """
    inside = [loop.node, *called_functions(source, operation.entry_point, loop)]
    queue, seen = [root], {id(root)}
    while queue:
        value = queue.pop()
        if NO_GRAPH in value.facts or value.kind in GRAPHLESS_KINDS or _is_data(value, loop, source):
            continue
        if not _is_created_inside(value, inside) or len(seen) > 2000:
            return False
        for each in (*value.sources, *value.union) if value.kind is not ValueKind.MODEL else ():
            if id(each) not in seen:
                seen.add(id(each))
                queue.append(each)
    return not any(_carries_state(node, inside, own=node is loop.node) for node in inside)


def called_functions(source: SourceFile, root: int, loop: Loop) -> list[Any]:
    """Return the functions of the file that a loop calls."""
    functions: dict[int, Any] = {}
    for each in source.operations:
        if each.entry_point == root and each.is_inside(loop):
            inner = {id(node) for node in functions.values()}
            functions.update({id(function): function for function in each.functions if id(function) not in inner})
    return [function for function in functions.values() if not encloses(function, loop.node)]


def _is_data(value: AbstractValue, loop: Loop, source: SourceFile) -> bool:
    """Return True for the values that a loop iterates over and for the result of ``next``."""
    node = value.node
    if isinstance(node, ast.Call):
        return source.qualified_name(node.func) in ("builtins.next", "builtins.enumerate", "builtins.zip")
    return node is loop.node or node is getattr(loop.node, "iter", None)


def _is_created_inside(value: AbstractValue, inside: Iterable[Any]) -> bool:
    match value.kind:
        case ValueKind.MODEL:  # a model of an unknown class may keep state
            return bool(value.name) or SUBMODULE in value.facts
        case ValueKind.TENSOR | ValueKind.SEQUENCE:
            return value.node is None or any(encloses(each, value.node) for each in inside)
        case _:
            parts = isinstance(value.node, ast.BinOp | ast.Subscript | ast.Name | ast.Attribute)
            return parts and bool(value.sources) and not value.union


def _carries_state(node: ast.AST, inside: list[Any], *, own: bool) -> bool:
    """Return True if a name is read before it is written, so its value is from the previous iteration."""
    loads = dict[str, tuple[int, int]]()
    elsewhere = {path for each in inside if each is not node for path, _ in _reads(each)}
    for path, position in _reads(node):
        loads[path] = min(position, loads.get(path, position))
    for path, position, value in _assignments(node):
        persists = "." in path  # local names of a function end with it; names of a loop and attributes persist
        if (not own and not persists) or _is_number(value):
            continue
        if path in loads and loads[path] <= position:
            return True
        if persists and path not in loads and path in elsewhere:
            return True
    return bool(nodes_in(node, ast.Global, ast.Nonlocal))


def _reads(node: ast.AST) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield the position of each name and attribute that is read, unless it is only detached."""
    detached = {id(each.value) for each in nodes_in(node, ast.Attribute) if each.attr in DETACHING_ATTRIBUTES}
    for each in nodes_in(node, ast.Name, ast.Attribute):
        if isinstance(each.ctx, ast.Load) and id(each) not in detached:
            yield ast.unparse(each), (each.end_lineno or 0, each.end_col_offset or 0)


def _assignments(node: ast.AST) -> Iterator[tuple[str, tuple[int, int], ast.AST | None]]:
    """Yield each assigned name with the end of the assignment and its value."""
    for each in nodes_in(node, ast.Assign, ast.AnnAssign, ast.NamedExpr, ast.AugAssign):
        for target in each.targets if isinstance(each, ast.Assign) else [each.target]:
            for part in nodes_in(target, ast.Name, ast.Attribute):
                if not isinstance(part.ctx, ast.Load):
                    if isinstance(each, ast.AugAssign) and not _is_number(each.value):
                        yield ast.unparse(part), (1 << 30, 0), each.value
                    yield ast.unparse(part), (each.end_lineno or 0, each.end_col_offset or 0), each.value


def _is_number(value: ast.AST | None) -> bool:
    """Return True for an expression that is a number."""
    if isinstance(value, ast.Constant) or value is None:
        return True
    if isinstance(value, ast.Call):
        name = value.func.attr if isinstance(value.func, ast.Attribute) else getattr(value.func, "id", "")
        return name in {*DETACHING_ATTRIBUTES, "len", "float", "int", "tolist", "time", "perf_counter"}
    return isinstance(value, ast.BinOp) and _is_number(value.right) and _is_number(value.left)


def share_graph(value: AbstractValue, others: Iterable[AbstractValue], source: SourceFile) -> bool:
    """Return True if the graphs of two values may overlap in more than models and data."""
    own_values = {
        id(each)
        for each in value.autograd_graph()
        if each.kind in (ValueKind.TENSOR, ValueKind.UNKNOWN, ValueKind.SEQUENCE)
    }
    data = {id(each.iterable) for operation in source.ops(OpKind.BACKWARD) for each in operation.loops}
    return any(id(each) in own_values - data for other in others for each in other.autograd_graph())
