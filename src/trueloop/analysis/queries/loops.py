"""Finds out which syntax nodes are in a loop, and which operations its iterations repeat."""

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from trueloop.analysis.abstract_value import ValueKind
from trueloop.analysis.operations import Branch, Loop, Op
from trueloop.core.source_text import nodes_in, walk

_SPLITTING: Final = ("split", "chunk", "tensor_split")
_BATCHES: Final = re.compile(r"batch|_iters?$|steps_per_epoch", re.IGNORECASE)
_PLAIN_TEST = ast.Name | ast.Compare | ast.Constant | ast.Is | ast.IsNot | ast.UnaryOp | ast.Not | ast.expr_context


def is_statement(node: Any) -> bool:
    """Return True for a loop statement, False for a comprehension."""
    return isinstance(node, ast.For | ast.While)


def is_batch_loop(loop: Loop) -> bool:
    """Return True for a loop over batches: of a loader, a generator or a split tensor, or over ``range(0, n, k)``."""
    iterable = loop.iterable
    while iterable is not None and iterable.kind is ValueKind.SEQUENCE and "iterable" in iterable.arguments:
        iterable = iterable.arguments["iterable"]
    if iterable is None or not isinstance(loop.node, ast.For):
        return False
    if iterable.kind is ValueKind.LOADER or iterable.name == "generator":
        return True
    if iterable.kind is ValueKind.TENSOR and iterable.name.rpartition(".")[2] in _SPLITTING:
        return True
    call: Any = iterable.node
    if not is_over_range(loop):
        return False
    if len(call.args) == 3:
        return True
    last = call.args[-1] if call.args else call
    return any(_BATCHES.search(getattr(each, "id", getattr(each, "attr", ""))) for each in walk(last))


def is_over_range(loop: Loop) -> bool:
    """Return True for a loop over ``range(...)``, also with a progress bar."""
    call = loop.iterable.node if loop.iterable is not None else None
    return isinstance(call, ast.Call) and getattr(call.func, "id", "") in ("range", "trange")


def is_inside(inner: Any, outer: Any) -> bool:
    """Return True if a syntax node is the same as another one, or a part of it."""
    return any(each is inner for each in walk(outer))


def repeats_with(operation: Op, other: Op, loop: Loop) -> bool:
    """Return True if an operation runs periodically, or in each iteration of a loop in which another operation runs."""
    if any(a.node is b.node and a.arm != b.arm for a in operation.branches for b in other.branches):
        return False
    return all(_is_periodic(branch, loop) for branch in operation.branches if branch not in other.branches)


def _is_periodic(branch: Branch, loop: Loop) -> bool:
    """Return True for a periodic condition, such as ``i % k``, or a condition that the loop does not change."""
    if not isinstance(branch.node, ast.If):
        return False
    arm: Sequence[ast.stmt] = branch.node.body if branch.arm == 0 else branch.node.orelse
    if any(isinstance(each, ast.Break | ast.Return | ast.Raise) for each in arm):
        return False
    test = branch.node.test
    names = {each.id for each in nodes_in(test, ast.Name)}
    if nodes_in(test, ast.Mod):
        return not nodes_in(test, ast.And, ast.Or)
    plain = all(isinstance(each, _PLAIN_TEST) for each in walk(test))
    return plain and not names & assigned_names(loop.node)


def always_run(block: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a block, with those of its ``with`` blocks in place of these, in order."""
    for each in block:
        if isinstance(each, ast.With):
            yield from always_run(each.body)
        else:
            yield each


def assigned_names(node: Any) -> set[str]:
    """Return the names of the variables that are assigned within a node."""
    return {each.id for each in nodes_in(node, ast.Name) if isinstance(each.ctx, ast.Store)}
