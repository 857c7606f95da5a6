"""Finds advantages that are cut off by the flag of the following step instead of that of their own step."""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.possible_values import (
    arguments_of_calls,
    enclosing_nodes,
    parameters_of,
    possible_values,
    unpacked_call,
)
from trueloop.analysis.source_file import SourceFile, last_name
from trueloop.core.source_text import integer, is_none, nodes_in

_FLAGS: Final = re.compile(r"(^|_)(dones?|terminals?|terminated|terminations?|terms?)($|_)", re.IGNORECASE)
_DISCOUNT: Final = re.compile(r"gamma|discount", re.IGNORECASE)
_MAX_CALLS: Final = 3


class OtherEnd(NamedTuple):
    """A flag of the next step, and the code which shows that the flag belongs to its own step."""

    read: ast.Subscript
    evidence: Any
    reason: str


def ends_of_other_step(source: SourceFile) -> Iterator[OtherEnd]:
    """Yield each ``1 - dones[t + 1]`` in a sum over the steps, where ``dones[t]`` is the end after step ``t``."""
    for node in source.nodes_of(ast.BinOp, ast.UnaryOp):
        read = _negated_flag(node)
        step = None if read is None else _previous(read)
        loop = None if step is None else _loop_over(source, node, step)
        if read is None or step is None or loop is None:
            continue
        if any(_is_of_own_step(each, step, read) for each in _other_arm(source, node)):
            yield OtherEnd(read, loop, "the last step uses the flag of its own step")
            continue
        stores = list(_stores(source, last_name(read.value)))
        is_own = [index is None or "+ 1" not in ast.unparse(index) for index, _ in stores]
        if stores and all(is_own) and all(_is_after_step(source, value, _MAX_CALLS) for _, value in stores):
            yield OtherEnd(read, stores[0][1], "the flag of a step is stored after it")


def _negated_flag(node: ast.AST) -> ast.Subscript | None:
    """Return the flag of ``1 - dones[t + 1]`` or ``~dones[t + 1]``; None for other expressions."""
    match node:
        case ast.BinOp(op=ast.Sub(), left=ast.Constant(value=1 | 1.0), right=flag):
            pass
        case ast.UnaryOp(op=ast.Not() | ast.Invert(), operand=flag):
            pass
        case _:
            return None
    while isinstance(flag, ast.Call) and isinstance(flag.func, ast.Attribute) and not flag.args:
        flag = flag.func.value  # dones[t + 1].float()
    return flag if isinstance(flag, ast.Subscript) and _FLAGS.search(last_name(flag.value)) else None


def _index(read: ast.Subscript) -> ast.expr:
    return read.slice.elts[0] if isinstance(read.slice, ast.Tuple) and read.slice.elts else read.slice


def _previous(read: ast.Subscript) -> str | None:
    """Return t for the index ``t + 1``; None for other indices."""
    match _index(read):
        case ast.BinOp(op=ast.Add(), left=ast.Name(id=step), right=one) if integer(one) == 1:
            return step
        case _:
            return None


def _loop_over(source: SourceFile, node: ast.AST, step: str) -> ast.For | None:
    """Return the loop around a node that runs over the steps and discounts; None if there is none."""
    loops = [each for each in enclosing_nodes(source, node) if isinstance(each, ast.For)]
    loop = next((each for each in loops if any(e.id == step for e in nodes_in(each.target, ast.Name))), None)
    return loop if loop is not None and _DISCOUNT.search(ast.unparse(loop)) else None


def _other_arm(source: SourceFile, node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes in the other arm of the innermost ``if`` around a node."""
    for each in enclosing_nodes(source, node):
        if isinstance(each, ast.If | ast.IfExp):
            arms = (each.body, each.orelse) if isinstance(each, ast.If) else ([each.body], [each.orelse])
            for arm, other in (arms, arms[::-1]):
                if any(inner is node for part in arm for inner in ast.walk(part)):
                    yield from (inner for part in other for inner in ast.walk(part))
            return


def _is_of_own_step(node: ast.AST, step: str, read: ast.Subscript) -> bool:
    """Return True for ``1 - dones[t]`` of the same flags, or for ``1 - dones[-1]``, that of the last step."""
    own = _negated_flag(node)
    if own is None or ast.unparse(own.value) != ast.unparse(read.value):
        return False
    index = _index(own)
    return (isinstance(index, ast.Name) and index.id == step) or integer(index) == -1


def _stores(source: SourceFile, name: str) -> Iterator[tuple[ast.expr | None, ast.expr]]:
    """Yield the index and the value of each item of some flags that is stored; None is the index of ``append``."""
    for each in source.nodes_of(ast.Assign):
        target = each.targets[0]
        if isinstance(target, ast.Subscript) and last_name(target.value) == name:
            yield target.slice, each.value
    for call in source.all_calls:
        match call.func:
            case ast.Attribute(attr="append", value=owner) if last_name(owner) == name and call.args:
                yield None, call.args[0]
            case _:
                pass


def _is_after_step(source: SourceFile, value: ast.expr, depth: int) -> bool:
    """Return True for a flag that ``env.step`` has returned earlier in the same function, or in that of the callers."""
    function = function_of(source, value)
    parameters = [] if isinstance(function, ast.Module) else [each.arg for each in parameters_of(function)]
    for name in nodes_in(value, ast.Name):
        call = unpacked_call(source, name)
        if call is not None:
            return last_name(call.func) == "step"
        of_callers = arguments_of_calls(source, function, name.id) if name.id in parameters else []
        given = [each for each in of_callers or possible_values(source, name) if not is_none(each)]
        if depth and given and all(_is_after_step(source, each, depth - 1) for each in given):
            return True
    return False
