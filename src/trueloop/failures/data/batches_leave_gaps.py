"""Batches that are cut out of the data by hand do not cover it: some samples are in no batch, or batches are empty.

What you see
    The loss of an epoch falls quickly and the held-out score is poor, as if there were little training data. Some
    batches are smaller than the others or empty, and the loss of an empty batch is NaN.

Why it happens
    A slice that reaches beyond the data, or whose end is before its start, is no error in Python: it is shorter, or
    empty. ``x[i:32]`` contains samples only while ``i`` is less than 32. In ``range(0, n, 32)`` the number ``i`` is
    the first sample of a batch; in ``range(n // 32)`` it is the number of the batch.

Fix
    Let the slice start at the sample ``i`` and end one batch later, or use a ``DataLoader``.

        for i in range(0, len(x), batch_size):
            inputs, labels = x[i : i + batch_size], y[i : i + batch_size]

When this is fine
    - Windows of a series that overlap: ``series[i : i + length]`` for each ``i``.
    - Windows at a distance from each other, so that no two of them are alike.
    - An input and its target are shifted: ``text[i : i + n]`` and ``text[i + 1 : i + n + 1]``.

How it is detected
    Only the linter finds it, from the source code: a loop over a ``range`` that calls a model or computes gradients,
    and slices whose bounds are sums and products of its variable, also through other variables. It reports a fixed end
    that is one step, a start that is multiplied by the step although the range already has it, a start that counts
    batches although the slice is one batch long, and two arrays with equal slices between which samples are left out.

References
    PyTorch, "What is torch.nn really?", which cuts batches by hand, https://docs.pytorch.org/tutorials/beginner/nn_tutorial.html
"""

import ast
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from trueloop.analysis.operations import OpKind
from trueloop.analysis.queries.batch_loops import assigned_in, function_of
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import dotted_name, nodes_in, walk
from trueloop.failures.failure import Failure, Rule, Severity, changed

_Sum = dict[tuple[str, ...], int]
"""A sum of products: the sorted factors of each product -> its coefficient; () = the number 1."""
_ONE: Final[_Sum] = {(): 1}
_MAX_DEPTH: Final = 6
_SLICE: Final = re.compile(r"\[[^\n\[\]]*\w[^\n]*:[^\n]*\w[^\n]*\]")
"""A slice with a start and an end."""


class _Range(NamedTuple):
    """A loop over a range of numbers."""

    node: ast.For
    variable: str
    stop: ast.expr
    step: _Sum


class _Part(NamedTuple):
    """A slice whose start follows the variable of a loop."""

    node: ast.Subscript
    start: _Sum
    end: _Sum


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield the slices that do not cover the data."""
    called = {id(loop.node) for each in source.ops(OpKind.MODEL_CALL) for loop in each.loops}
    for node in source.nodes_of(ast.For):
        if not (id(node) in called or any(each.attr == "backward" for each in nodes_in(node, ast.Attribute))):
            continue
        loop = _range(source, node)
        parts = list(_parts(source, loop)) if loop is not None else []
        reported = False
        for part in parts:
            fault = _fault(source, loop, part, parts) if loop is not None and not reported else ""
            reported = reported or bool(fault)
            if fault:
                yield Hit(message=f"`{ast.unparse(part.node)}` {fault}.", node=part.node, related=((node, "the loop"),))


def _range(source: SourceFile, node: ast.For) -> _Range | None:
    """Return the range of a loop, without a progress bar and ``enumerate``; None for other loops."""
    call, target = node.iter, node.target
    while isinstance(call, ast.Call) and last_name(call.func) in ("tqdm", "enumerate", "list") and call.args:
        if last_name(call.func) == "enumerate" and isinstance(target, ast.Tuple):
            target = target.elts[-1]
        call = call.args[0]
    if not isinstance(call, ast.Call) or last_name(call.func) not in ("range", "trange") or not call.args:
        return None
    if not isinstance(target, ast.Name):
        return None
    step = _sum_of(source, node, call.args[2], 0) if len(call.args) == 3 else _ONE
    stop = call.args[min(1, len(call.args) - 1)]
    return None if step is None else _Range(node, target.id, stop, step)


def _sum_of(source: SourceFile, loop: ast.For, node: ast.expr, depth: int) -> _Sum | None:
    """Return a number as a sum of products; None for other expressions.

    Variables that the loop assigns once, and variables of the function that are constants, are replaced by their value.
    """
    match node:
        case ast.Constant(value=int(number)):
            return {(): number} if number else {}
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() | ast.Mult() as op, right=right):
            one, other = (_sum_of(source, loop, each, depth) for each in (left, right))
            return None if one is None or other is None else _combine(op, one, other)
        case ast.Call(func=ast.Name(id="min"), args=[first, second]):
            names = {each.id for each in nodes_in(loop.target, ast.Name)}
            values = [_sum_of(source, loop, each, depth) for each in (first, second)]
            following = [each for each in values if each and any(names & set(factors) for factors in each)]
            return following[0] if len(following) == 1 else None
        case ast.Name() | ast.Attribute():
            return _value_of(source, loop, node, depth)
        case _:
            return None


def _value_of(source: SourceFile, loop: ast.For, node: ast.expr, depth: int) -> _Sum | None:
    name = dotted_name(node)
    if name in [each.id for each in nodes_in(loop.target, ast.Name)]:
        return {(name,): 1}
    inside = assigned_in(loop, name)
    outside = [] if inside else assigned_in(function_of(source, loop), name) or assigned_in(source.tree, name)
    values = inside if len(inside) == 1 else [each for each in outside if isinstance(each, ast.Constant)]
    if len(inside) > 1 or any(dotted_name(each.target) == name for each in nodes_in(loop, ast.AugAssign)):
        return None
    if depth < _MAX_DEPTH and len(values) == 1 and len(outside) < 2:
        return _sum_of(source, loop, values[0], depth + 1)
    return {(name,): 1} if name else None


def _combine(op: ast.operator, one: _Sum, other: _Sum) -> _Sum:
    found: _Sum = dict(one) if not isinstance(op, ast.Mult) else {}
    if isinstance(op, ast.Mult):
        for left, factor in one.items():
            for right, other_factor in other.items():
                key = tuple(sorted((*left, *right)))
                found[key] = found.get(key, 0) + factor * other_factor
    else:
        for key, factor in other.items():
            found[key] = found.get(key, 0) + (-factor if isinstance(op, ast.Sub) else factor)
    return {key: factor for key, factor in found.items() if factor}


def _parts(source: SourceFile, loop: _Range) -> Iterator[_Part]:
    """Yield the slices of rows that start at a multiple of a loop's variable."""
    for node in walk(loop.node):
        rows = node.slice if isinstance(node, ast.Subscript) else None
        rows = rows.elts[0] if isinstance(rows, ast.Tuple) and rows.elts else rows
        if not isinstance(node, ast.Subscript) or not isinstance(rows, ast.Slice) or rows.step is not None:
            continue
        if rows.lower is None or rows.upper is None or not isinstance(node.ctx, ast.Load):
            continue
        start, end = (_sum_of(source, loop.node, each, 0) for each in (rows.lower, rows.upper))
        if start is not None and end is not None and _factor_of(start, loop.variable):
            yield _Part(node, start, end)


def _factor_of(number: _Sum, variable: str) -> _Sum:
    """Return what a variable is multiplied by in a sum."""
    found: _Sum = {}
    for factors, coefficient in number.items():
        if factors.count(variable) == 1:
            rest = list(factors)
            rest.remove(variable)
            found[tuple(rest)] = coefficient
    return found


def _fault(source: SourceFile, loop: _Range, part: _Part, parts: list[_Part]) -> str:
    """Return what is wrong with a slice; "" if nothing certainly is."""
    moves = _factor_of(part.start, loop.variable)
    size, stride = _combine(ast.Sub(), part.end, part.start), _combine(ast.Mult(), moves, loop.step)
    if not _factor_of(part.end, loop.variable):
        is_step = part.end == loop.step != _ONE
        return "ends at the same sample in every iteration: after the first one it is empty" if is_step else ""
    if _factor_of(size, loop.variable) or not size or stride == size:
        return ""
    if loop.step == size != _ONE and moves == size:
        return f"starts at a multiple of `{loop.variable}`, which already is the first sample of a batch"
    if stride == _ONE and len(size) == 1 and _counts_batches(source, loop, size):
        return f"starts at the sample `{loop.variable}`, which is the number of a batch: neighbouring batches overlap"
    gap = _combine(ast.Sub(), stride, size)
    left_out = gap[()] if set(gap) == {()} and loop.step != _ONE else 0
    text = ast.unparse(part.node.slice)
    arrays = {ast.unparse(each.node.value) for each in parts if ast.unparse(each.node.slice) == text}
    is_gap = left_out > 0 and len(arrays) > 1
    return f"leaves out {left_out} sample{'s' * (left_out > 1)} between two batches" if is_gap else ""


def _counts_batches(source: SourceFile, loop: _Range, size: _Sum) -> bool:
    """Return True if the end of a range is a number of samples divided by the size of a batch."""
    stops = [loop.stop]
    if isinstance(loop.stop, ast.Name | ast.Attribute):
        name = dotted_name(loop.stop)
        stops = assigned_in(function_of(source, loop.node), name) or assigned_in(source.tree, name)
    quotients = [
        each for stop in stops for each in nodes_in(stop, ast.BinOp) if isinstance(each.op, ast.FloorDiv | ast.Div)
    ]
    return bool(quotients) and all(_sum_of(source, loop.node, each.right, 0) == size for each in quotients)


RULE = Rule(required_words=("range(", "torch", _SLICE), find=find)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(160, 8)
y = x.sum(1, keepdim=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batch_size = 32
for epoch in range(3):
    for i in range(len(x) // batch_size):
        inputs, targets = x[i : i + batch_size], y[i : i + batch_size]
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
"""

FAILURE = Failure(
    code="DAT016",
    title="Batches cut by hand do not cover the data",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"range(len(x) // batch_size)": "range(0, len(x), batch_size)"}),
    fix="Start each batch where the previous one ended: `for i in range(0, len(x), n): x[i : i + n]`.",
    rule=RULE,
)
