"""Decides from the source code whether the samples of a dataset of the program are collected class by class."""

import ast
import re
from collections.abc import Iterator, Set
from typing import Any, Final

from trueloop.analysis.abstract_value import AbstractValue, ValueKind
from trueloop.analysis.queries.batch_loops import assigned_in, function_of, without_conversions
from trueloop.analysis.queries.possible_values import computed_from, loops_around, possible_values
from trueloop.analysis.source_file import SourceFile, last_name
from trueloop.core.source_text import nodes_in, walk

_LISTING: Final = frozenset((
    "listdir", "scandir", "iterdir", "glob", "range", "set", "unique", "keys", "items", "walk", "rglob",
))  # fmt: skip
_CLASSES: Final = re.compile(
    r"class|categor|label|species|breed|folder|director(y|ies)|(^|_)dirs?($|_)|digit|genre|letter", re.IGNORECASE
)
_STORING: Final = frozenset(("append", "extend", "insert"))
_REORDERING: Final = frozenset((
    "shuffle", "permutation", "permuted", "randperm", "sample", "choice", "sort", "argsort", "train_test_split",
    "random_split",
))  # fmt: skip
_MAX_DEPTH: Final = 5

Key = tuple[Any, str]
"""What identifies a list: the id of its function, or of the class of an attribute, and its name."""


def is_collected_by_class(source: SourceFile, dataset: AbstractValue) -> bool:
    """Return True if a dataset's samples are appended in a loop over its classes, and nothing reorders them."""
    definition: Any = dataset.scope.node if dataset.scope is not None else None
    if dataset.kind is not ValueKind.DATASET or not isinstance(definition, ast.ClassDef):
        return False
    item = next((e for e in definition.body if isinstance(e, ast.FunctionDef) and e.name == "__getitem__"), None)
    target = _target(item) if item is not None else None
    if target is None:
        return False
    keys = set(_keys(source, target[0]))
    reordered = [part for call in source.all_calls for part in _reordered(call)]
    reordered += [each for key, value, _ in _stores(source) if key in keys for each in _items_of(value)]
    if any(_key(source, each) in keys for each in reordered):
        return False
    return any(_is_block(source, value, store, target[1]) for key, value, store in _stores(source) if key in keys)


def _target(item: ast.FunctionDef) -> tuple[ast.expr, Any] | None:
    """Return the list from which ``__getitem__`` reads the target, and the position or key of it in a sample.

    The position is None if the list has only targets, as ``self.labels[index]``.
    """
    returned = [each.value for each in nodes_in(item, ast.Return)]
    if len(returned) != 1 or not isinstance(returned[0], ast.Tuple) or len(item.args.args) != 2:
        return None
    node, index = returned[0].elts[-1], item.args.args[1].arg
    for _ in range(_MAX_DEPTH):
        node = without_conversions(node)
        if isinstance(node, ast.Call) and last_name(node.func) in ("tensor", "as_tensor", "long") and node.args:
            node = node.args[0]
        read = _read(node, index)
        values = assigned_in(item, node.id) if isinstance(node, ast.Name) else []
        if read is not None or not isinstance(node, ast.Name):
            return read
        if len(values) == 1:
            node = values[0]
            continue
        for each in nodes_in(item, ast.Assign):
            names = [last_name(part) for part in getattr(each.targets[0], "elts", ())]
            row = _read(each.value, index)
            if node.id in names and row is not None and row[1] is None:
                return row[0], names.index(node.id)
        return None
    return None


def _read(node: ast.expr, index: str) -> tuple[ast.expr, Any] | None:
    """Return list and position of ``self.samples[index][1]`` or ``self.labels[index]``."""
    match node:
        case ast.Subscript(value=ast.Attribute() as rows, slice=ast.Name(id=name)) if name == index:
            return rows, None
        case ast.Subscript(value=ast.Subscript() as row, slice=ast.Constant(value=position)):
            found = _read(row, index)
            return (found[0], position) if found is not None and found[1] is None else None
        case _:
            return None


def _reordered(call: ast.Call) -> list[ast.expr]:
    """Return the variables that a call may put in another order."""
    if last_name(call.func) == "sorted":
        return [each for each in call.args[:1] if isinstance(each, ast.Name | ast.Attribute)]
    if last_name(call.func) not in _REORDERING:
        return []
    parts = [*call.args, *([call.func.value] if isinstance(call.func, ast.Attribute) else [])]
    return [each for part in parts for each in nodes_in(part, ast.Name, ast.Attribute)]


def _items_of(value: ast.expr) -> list[ast.expr]:
    """Return the lists whose items an expression selects, as ``samples`` in ``[samples[i] for i in order]``."""
    selected = [each.value for each in nodes_in(value, ast.Subscript) if isinstance(each.slice, ast.Name)]
    return [each for each in selected if isinstance(each, ast.Name | ast.Attribute)]


def _keys(source: SourceFile, node: ast.expr, depth: int = 2) -> Iterator[Key]:
    """Yield the keys of the lists from which a value may come, also those that functions return."""
    for each in computed_from(source, node, _MAX_DEPTH):
        if isinstance(each, ast.Name | ast.Attribute):
            yield _key(source, each)
        elif isinstance(each, ast.Call) and depth:
            for value in possible_values(source, each):
                yield from _keys(source, value, depth - 1)


def _key(source: SourceFile, node: Any) -> Key:
    scope = function_of(source, node)
    if isinstance(node, ast.Attribute):
        return id(source.parents.get(id(scope))), node.attr
    return id(scope), last_name(node)


def _stores(source: SourceFile) -> Iterator[tuple[Key, ast.expr, ast.AST]]:
    """Yield the list, the value and the statement or call of each ``append``, ``extend``, ``+=`` and comprehension."""
    for each in source.nodes_of(ast.Call, ast.AugAssign, ast.Assign):
        match each:
            case ast.Call(func=ast.Attribute(value=base, attr=attr), args=[*_, value]) if attr in _STORING:
                pass
            case ast.AugAssign(op=ast.Add(), target=base, value=value):
                pass
            case ast.Assign(targets=[base], value=ast.ListComp() as value):
                pass
            case _:
                continue
        if isinstance(base, ast.Name | ast.Attribute):
            yield _key(source, base), value, each


def _is_block(source: SourceFile, value: ast.expr, store: ast.AST, position: Any) -> bool:
    """Return True if the target in an item is the class that the outer one of two loops is at."""
    loops: list[ast.For | ast.comprehension] = [e for e in loops_around(source, store) if isinstance(e, ast.For)]
    match value:
        case ast.ListComp(elt=element, generators=generators) | ast.GeneratorExp(elt=element, generators=generators):
            loops, value = [*generators[::-1], *loops], element
        case ast.BinOp(op=ast.Mult(), left=ast.List(elts=[label]), right=count) if position is None:
            return bool(loops) and not isinstance(count, ast.Constant) and _is_label(source, label, loops[0])
        case _:
            pass
    if isinstance(value, ast.Tuple | ast.List) and isinstance(position, int) and position < len(value.elts):
        value = value.elts[position]
    elif isinstance(value, ast.Dict):
        value = next((v for k, v in zip(value.keys, value.values, strict=True) if _text(k) == position), value)
    elif position is not None:
        return False
    return any(_is_label(source, value, outer) for outer in loops[1:])


def _text(node: ast.expr | None) -> Any:
    return node.value if isinstance(node, ast.Constant) else None


def _is_label(source: SourceFile, node: ast.expr, loop: ast.For | ast.comprehension) -> bool:
    """Return True for the class that a loop over classes is at, or its number: ``label`` or ``class_to_idx[name]``."""
    bound = {each.id for each in nodes_in(loop.target, ast.Name)}
    values = assigned_in(loop, node.id) if isinstance(node, ast.Name) and isinstance(loop, ast.For) else []
    expression = values[0] if len(values) == 1 else node
    names = {each.id for each in nodes_in(expression, ast.Name)}
    is_number = isinstance(expression, ast.Name) and expression.id in bound
    if isinstance(expression, ast.Subscript):
        is_number = isinstance(expression.slice, ast.Name) and expression.slice.id in bound
    elif isinstance(expression, ast.Call):
        is_number = last_name(expression.func) in ("int", "index", "float", "get", "tensor") and bool(names & bound)
    return is_number and _is_over_classes(source, loop.iter)


def _is_over_classes(source: SourceFile, iterable: ast.expr) -> bool:
    """Return True for an iterable with each class once, such as ``sorted(os.listdir(root))`` or ``range(10)``."""
    nodes = list(walk(iterable))
    called = _called(nodes)
    if "zip" in called:
        return False
    names = {last_name(each) for each in nodes if isinstance(each, ast.Name | ast.Attribute)}
    values = [value for each in nodes if isinstance(each, ast.Name | ast.Attribute) for value in _values(source, each)]
    return bool(_LISTING & called) or any(map(_CLASSES.search, names)) or bool(_LISTING & _called(values))


def _values(source: SourceFile, node: ast.expr) -> list[ast.AST]:
    return [part for value in possible_values(source, node) for part in walk(value)]


def _called(nodes: list[ast.AST]) -> Set[str]:
    return {last_name(each.func) for each in nodes if isinstance(each, ast.Call)}
