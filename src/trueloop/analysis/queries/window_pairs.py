"""Finds windows of an array with the targets that are cut out of the same array, in the source."""

import ast
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final, NamedTuple

from trueloop.analysis.project import WITH_BLOCKS
from trueloop.analysis.queries.batch_loops import assigned_in, assigned_pairs, function_of, is_label
from trueloop.analysis.source_file import SourceFile, last_name
from trueloop.core.source_text import nodes_in, walk

CONVERSIONS: Final = frozenset((
    "array", "asarray", "as_tensor", "astype", "clone", "contiguous", "copy", "double", "flatten", "float", "float32",
    "from_numpy", "int", "list", "long", "numpy", "ravel", "reshape", "squeeze", "stack", "tensor", "to", "to_numpy",
    "tolist", "type", "unsqueeze", "values", "view", "FloatTensor", "LongTensor", "Tensor", "vstack",
))  # fmt: skip
"""Functions, methods and attributes that keep all values of an array."""
_BASELINE: Final = re.compile(
    r"last|prev|naive|base|persist|curr|anchor|start|init|context|(^|_)(cond|ref|now|scale|level)($|_)", re.IGNORECASE
)
"""Names of a value of the window that is not the target."""
_MAX_DEPTH: Final = 4

Linear = dict[str, int]
"""A sum of expressions with their factors; "" is the constant: {"i": 1, "width": 1, "": -1}."""


class Part(NamedTuple):
    """Some steps or columns of an array: ``series[i:i + width]`` or ``series[i + width - 1, 0]``."""

    node: ast.Subscript
    array: str
    before: tuple[str, ...]
    """Indices of the dimensions before the one that is cut."""
    lower: Linear
    upper: Linear | None
    """Where a slice ends; None for an index, or a slice to the end."""
    is_slice: bool
    rest: tuple[str, ...]
    """Indices after it."""
    is_own_end: bool = False
    """Whether it is ``window[-1]`` of an input that is called ``window``."""


class Pair(NamedTuple):
    """What may be an input and its target."""

    inputs: ast.expr
    target: ast.expr
    function: Any


@lru_cache(maxsize=1)  # rules of one file follow each other
def window_pairs(source: SourceFile) -> tuple[Pair, ...]:
    """Return expressions that are stored, returned or collected together."""
    return tuple(_window_pairs(source))


def _window_pairs(source: SourceFile) -> Iterator[Pair]:
    for node in source.nodes_of(ast.Tuple):
        parent = source.parents.get(id(node))
        is_append = isinstance(parent, ast.Call) and last_name(parent.func) == "append"
        is_pair = len(node.elts) == 2 and not _BASELINE.search(last_name(node.elts[1]))
        if is_pair and (is_append or isinstance(parent, ast.Return | ast.Yield | ast.ListComp | ast.GeneratorExp)):
            yield Pair(node.elts[0], node.elts[1], function_of(source, node))
    for statement in source.nodes_of(*WITH_BLOCKS):
        for name in ("body", "orelse"):
            block: Any = getattr(statement, name, None)
            if isinstance(block, list) and len(block) > 1:
                yield from _pairs_in_block(source, block)


def _pairs_in_block(source: SourceFile, block: list[ast.stmt]) -> Iterator[Pair]:
    """Yield the inputs and targets of statements such as ``xs.append(...)`` and ``ys.append(...)``."""
    appended: list[tuple[ast.expr, ast.expr]] = []
    assigned: list[tuple[ast.expr, ast.expr]] = []
    for each in block:
        match each:
            case ast.Expr(value=ast.Call(func=ast.Attribute(attr="append", value=owner), args=[value])):
                appended.append((owner, value))
            case ast.Assign():
                assigned += [
                    (target.value if isinstance(target, ast.Subscript) else target, value)
                    for target, value in assigned_pairs(each)
                ]
            case _:
                pass
    for owner, inputs in appended:
        for other, target in appended:
            is_target = is_label(other) or len(appended) == 2
            if owner is not other and not is_label(owner) and is_target and not _is_baseline(other):
                yield Pair(inputs, target, function_of(source, block[0]))
    yield from _assigned_pairs(source, assigned)


def _assigned_pairs(source: SourceFile, assigned: list[tuple[ast.expr, ast.expr]]) -> Iterator[Pair]:
    """Yield each target with the inputs that are assigned next to it."""
    for number, (owner, target) in enumerate(assigned):
        if not is_label(owner) or _is_baseline(owner):
            continue
        near = [place for place, (other, _) in enumerate(assigned) if last_name(other) == last_name(owner)]
        start = max((place for place in near if place < number), default=-1)
        later = assigned[number + 1 :] if len(near) == 1 else []
        by_name = {last_name(other): inputs for other, inputs in [*later[::-1], *assigned[start + 1 : number]]}
        for name, inputs in by_name.items():
            if name != last_name(owner):
                yield Pair(inputs, target, function_of(source, owner))


def _is_baseline(node: ast.expr) -> bool:
    return not isinstance(node, ast.Name | ast.Attribute) or bool(_BASELINE.search(last_name(node)))


@lru_cache(maxsize=1024)
def parts_of(pair: Pair) -> tuple[tuple[Part, Part], ...]:
    """Return what is cut out of the same array for the inputs and for the target, for each dimension."""
    return tuple(_parts_of(pair))


def _parts_of(pair: Pair) -> Iterator[tuple[Part, Part]]:
    inputs, target = array_of(pair.inputs), array_of(pair.target)
    match inputs, target:
        case (
            ast.ListComp(elt=first, generators=a) | ast.GeneratorExp(elt=first, generators=a),
            ast.ListComp(elt=second, generators=b) | ast.GeneratorExp(elt=second, generators=b),
        ) if [*map(ast.unparse, a)] == [*map(ast.unparse, b)]:
            inputs, target = array_of(first), array_of(second)
        case _:
            inputs, target = _value_of(pair.function, inputs), array_of(pair.target)
    target, owner = _value_of(pair.function, target), array_of(pair.inputs)
    match target:
        case ast.Subscript(value=ast.Name(id=name), slice=index) if ast.unparse(index) in ("-1", "-1:"):
            if isinstance(owner, ast.Name) and owner.id == name and isinstance(inputs, ast.Subscript):
                yield from (
                    (each, each._replace(node=target, is_own_end=True)) for each in _cuts(pair.function, inputs)[:1]
                )
            return
        case _:
            pass
    if isinstance(inputs, ast.Subscript) and isinstance(target, ast.Subscript):
        for window in _cuts(pair.function, inputs):
            for each in _cuts(pair.function, target):
                if window.array == each.array and window.before == each.before and window.is_slice:
                    yield window, each


def _value_of(function: Any, node: ast.expr) -> ast.expr:
    """Return the value of a variable that the function assigns once; other expressions unchanged."""
    for _ in range(_MAX_DEPTH):
        node = array_of(node)
        values = assigned_in(function, node.id) if isinstance(node, ast.Name) else []
        if len(values) != 1:
            break
        node = values[0]
    return node


def array_of(node: ast.expr) -> ast.expr:
    """Return the array of which an expression keeps all values: ``s`` of ``torch.tensor(s.copy())``."""
    while True:
        match node:
            case ast.Call(func=func, args=args) if last_name(func) in CONVERSIONS:
                is_method = isinstance(func, ast.Attribute) and not (
                    isinstance(func.value, ast.Name) and func.value.id in ("np", "numpy", "torch", "th", "pd")
                )
                inner = func.value if is_method and isinstance(func, ast.Attribute) else next(iter(args), None)
                if inner is None:
                    return node
                node = inner
            case ast.Attribute(value=inner, attr="values" | "data"):
                node = inner
            case _:
                return node


def _cuts(function: Any, node: ast.Subscript) -> list[Part]:
    """Return how an expression cuts out a part of an array, for each dimension that may be cut."""
    base = node.value
    indices: list[ast.expr] = list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]
    if isinstance(base, ast.Subscript):  # table.iloc[i:j]["price"]
        text = indices[0] if len(indices) == 1 else None
        if not (isinstance(text, ast.List) or (isinstance(text, ast.Constant) and isinstance(text.value, str))):
            return []
        inner = list(base.slice.elts) if isinstance(base.slice, ast.Tuple) else [base.slice]
        indices, base = [*inner, text], base.value
    if not isinstance(base, ast.Name | ast.Attribute):
        return []
    texts = [ast.unparse(each) for each in indices]
    found: list[Part] = []
    for position, each in enumerate(indices):
        rest = tuple(text for text in texts[position + 1 :] if text not in (":", "..."))
        before = tuple(texts[:position])
        if isinstance(each, ast.Slice) and each.step is None and (each.lower or each.upper):
            lower = _linear(function, each.lower) if each.lower else {}
            upper = _linear(function, each.upper) if each.upper else None
            found.append(Part(node, ast.unparse(base), before, lower, upper, True, rest))
        elif not isinstance(each, ast.Slice | ast.Tuple | ast.List):
            found.append(Part(node, ast.unparse(base), before, _linear(function, each), None, False, rest))
    return found


def _linear(function: Any, node: ast.expr, depth: int = _MAX_DEPTH) -> Linear:
    """Return an index as a sum, with the values of variables that the function assigns once."""
    match node:
        case ast.Constant(value=int(number)):
            return {"": number} if number else {}
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return add_linear({}, _linear(function, inner, depth), -1)
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as operator, right=right):
            sign = 1 if isinstance(operator, ast.Add) else -1
            return add_linear(_linear(function, left, depth), _linear(function, right, depth), sign)
        case ast.Name(id=name) if depth and len(values := assigned_in(function, name)) == 1:
            is_sum = isinstance(values[0], ast.BinOp) and isinstance(values[0].op, ast.Add | ast.Sub)
            return _linear(function, values[0], depth - 1) if is_sum else {name: 1}
        case _:
            return {ast.unparse(node): 1}


def add_linear(first: Linear, second: Linear, sign: int) -> Linear:
    """Return the sum of two sums of expressions; with a sign of -1 their difference."""
    total = {key: first.get(key, 0) + sign * second.get(key, 0) for key in (*first, *second)}
    return {key: value for key, value in total.items() if value}


def is_only_target(pair: Pair, window: Part, target: Part) -> bool:
    """Return False if the function also takes a later step, or changes the input or an index in between."""
    upper = window.upper
    lines = sorted((window.node.lineno, target.node.lineno))
    moving = {key for part in (window.lower, target.lower) for key in part}
    stored = {last_name(each.value) for each in _item_stores(pair.function)}
    for each in walk(pair.function):
        match each:
            case ast.AugAssign(target=ast.Name(id=name), lineno=line) if name in moving and lines[0] < line <= lines[1]:
                return False
            case ast.Subscript() if upper is not None and each is not target.node and _reaches(pair, each, window):
                return False
            case ast.Subscript(value=ast.Name(id=name), slice=ast.Tuple(elts=[_, second, *_])) if window.before:
                if name in _names_of(pair, window) and ast.unparse(second) != ":":
                    return False  # the column is dropped later
            case ast.Call(func=func, args=[*_]) if window.before and last_name(func) in ("delete", "drop"):
                return False
            case _:
                pass
    return not stored & _names_of(pair, window)


def _item_stores(function: Any) -> list[ast.Subscript]:
    """Return the items of arrays that a function overwrites, but not those of which it stores each sample."""
    stored = [each for each in nodes_in(function, ast.Subscript) if isinstance(each.ctx, ast.Store)]
    return [each for each in stored if not isinstance(each.slice, ast.Name | ast.BinOp)]


def _names_of(pair: Pair, window: Part) -> set[str]:
    """Return the variables that get the input."""
    own = {pair.inputs.id} if isinstance(pair.inputs, ast.Name) else set[str]()
    for each in nodes_in(pair.function, ast.Assign):
        if any(part is window.node for part in walk(each.value)):
            own |= {last_name(target) for target in each.targets}
    return own


def _reaches(pair: Pair, node: ast.Subscript, window: Part) -> bool:
    """Return True if an expression takes a step of the same array after the window."""
    for each in _cuts(pair.function, node):
        if window.upper and each.array == window.array and each.before == window.before:
            later = add_linear(each.lower, window.upper, -1)
            if all(factor > 0 for factor in later.values()) and not (each.is_slice and not each.lower):
                return True
    return False
