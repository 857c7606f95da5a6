"""Finds the last step of a sequence that was packed and padded again, which is zero for all but the longest."""

import ast
import re
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.layer_arguments import argument_node
from trueloop.analysis.queries.possible_values import origins, possible_values, unpacked_call
from trueloop.analysis.source_file import SourceFile, last_name
from trueloop.core.source_text import integer, nodes_in

_EACH_STEP: Final = re.compile(r"drop|norm|relu|tanh|gelu|act|linear|fc|proj")
"""Parts of names of modules and functions that are applied to each step on its own."""
_ONE_LENGTH: Final = frozenset(("full", "full_like", "repeat", "expand"))
_MAX_DEPTH: Final = 10


def last_packed_steps(source: SourceFile) -> Iterator[tuple[ast.Subscript, ast.Call]]:
    """Yield each ``out[:, -1]`` with the call of ``pad_packed_sequence`` that made ``out``."""
    for each in source.nodes_of(ast.Subscript):
        items = each.slice.elts if isinstance(each.slice, ast.Tuple) else [each.slice]
        is_read = isinstance(each.ctx, ast.Load) and len(items) <= 3
        position = next((number for number, item in enumerate(items[:2]) if integer(item) == -1), None)
        if not is_read or position is None or not all(_is_whole(item) for item in items[:position]):
            continue
        call = _unpacked(source, each.value)
        if call is not None and position == _time_dimension(call) and not _has_one_length(source, call):
            yield each, call


def _is_whole(item: ast.expr) -> bool:
    return isinstance(item, ast.Slice) and item.lower is None and item.upper is None


def _time_dimension(call: ast.Call) -> int:
    """Return the dimension of the steps; -1 if a variable decides it."""
    given = argument_node(call, "batch_first", 1)
    if given is None:
        return 0
    return int(given.value is True) if isinstance(given, ast.Constant) else -1


def _unpacked(source: SourceFile, node: ast.expr) -> ast.Call | None:
    """Return the call of ``pad_packed_sequence`` whose steps a value has, each changed on its own at most."""
    steps: ast.expr | None = node
    for _ in range(_MAX_DEPTH):
        call = unpacked_call(source, steps) if isinstance(steps, ast.Name) else None
        if isinstance(steps, ast.Name) and call is not None:
            return call if _is_padded_again(call) and _is_first(source, call, steps.id) else None
        match steps:
            case ast.Subscript(value=ast.Call() as made, slice=ast.Constant(value=0)) if _is_padded_again(made):
                return made
            case None:
                return None
            case _:
                steps = _before(source, steps)
    return None


def _before(source: SourceFile, node: ast.expr) -> ast.expr | None:
    """Return the value from which another one is computed step by step."""
    match node:
        case ast.Name():
            values = possible_values(source, node)
            return values[0] if len(values) == 1 else None
        case ast.Subscript(value=inner, slice=ast.Tuple(elts=[first, second, *_])):
            return inner if _is_whole(first) and _is_whole(second) else None
        case ast.BinOp(left=inner) | ast.Call(func=ast.Attribute(attr="contiguous" | "float", value=inner), args=[]):
            return inner
        case ast.Call(args=[inner, *_]) if _EACH_STEP.search(last_name(node.func).lower()):
            return inner
        case _:
            return None


def _is_padded_again(call: ast.Call) -> bool:
    return last_name(call.func) == "pad_packed_sequence"


def _is_first(source: SourceFile, call: ast.Call, name: str) -> bool:
    """Return True for the ``out`` of ``out, lengths = pad_packed_sequence(...)``."""
    match source.parents.get(id(call)):
        case ast.Assign(targets=[ast.Tuple(elts=[ast.Name(id=first), *_])]):
            return first == name
        case _:
            return False


def _has_one_length(source: SourceFile, call: ast.Call) -> bool:
    """Return True if the function packs sequences of one length: ``torch.full((n,), steps)``, ``[steps] * n``."""
    packed = [e for e in nodes_in(function_of(source, call), ast.Call) if last_name(e.func) == "pack_padded_sequence"]
    given = [argument_node(each, "lengths", 1) for each in packed]
    values = [value for each in given if each is not None for value in origins(source, each)]
    made = [part for each in values for part in nodes_in(each, ast.Call, ast.BinOp)]
    return any(
        last_name(each.func) in _ONE_LENGTH
        if isinstance(each, ast.Call)
        else isinstance(each.op, ast.Mult) and isinstance(each.left, ast.List)
        for each in made
    )
