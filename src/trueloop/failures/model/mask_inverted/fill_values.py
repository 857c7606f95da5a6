"""Finds the numbers that a program writes into masked scores, also through constants, settings and tensors of them."""

import ast
import math
from typing import Final

from trueloop.analysis.queries.possible_values import default_of, possible_values
from trueloop.analysis.source_file import SourceFile, last_name
from trueloop.core.source_text import nodes_in

MASKED_SCORE: Final = -5  # and below; a score above it keeps a weight after the softmax
TINY: Final = 1e-3  # a number that changes no weight if it is added to the scores
_SMALLEST: Final = frozenset(("tiny", "eps", "smallest_normal", "smallest_subnormal", "epsilon"))
_TENSORS: Final = frozenset(("tensor", "new_tensor", "as_tensor", "float", "scalar_tensor", "FloatTensor", "to"))
_FILLED: Final = frozenset(("full_like", "full", "new_full"))
_DEPTH: Final = 5


def is_weighted(source: SourceFile, node: ast.expr) -> bool:
    """Return True for a score that keeps a weight after a softmax: 0, -1, 1e-9, ``torch.zeros_like(x)``."""
    found = numbers(source, node)
    return bool(found) and all(each > MASKED_SCORE for each in found)


def is_tiny(source: SourceFile, node: ast.expr) -> bool:
    """Return True for a number that is certainly almost 0: it changes no weight if it is added to the scores."""
    found = numbers(source, node)
    return bool(found) and all(abs(each) <= TINY for each in found)


def numbers(source: SourceFile, node: ast.expr, depth: int = _DEPTH) -> list[float]:
    """Return the numbers that an expression may have, or with which it fills a tensor; [] if one is unknown."""
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            found = [float(number)]
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            found = [-each for each in numbers(source, inner, depth)]
        case ast.BinOp(left=left, op=op, right=right):
            found = _computed(op, numbers(source, left, depth), numbers(source, right, depth))
        case ast.Call():
            found = _of_call(source, node, depth)
        case ast.Attribute() if _is_smallest(node):
            found = [0.0]
        case ast.Name() | ast.Attribute() if depth:
            found = _of_values(source, _values(source, node), depth)
        case _:
            found = list[float]()
    return found


def _is_smallest(node: ast.Attribute) -> bool:
    """Return True for the smallest positive number or the precision of a dtype, which are not its lowest number."""
    is_of_float = node.attr == "min" and last_name(node.value) == "float_info"
    return is_of_float or (node.attr in _SMALLEST and "info" in ast.unparse(node.value))


def _computed(op: ast.operator, left: list[float], right: list[float]) -> list[float]:
    """Return the power or the product of two numbers; [] for others."""
    if len(left) != 1 or len(right) != 1:
        return []
    if isinstance(op, ast.Pow) and left[0] > 0 and abs(right[0] * math.log10(left[0])) < 300:
        return [left[0] ** right[0]]
    return [left[0] * right[0]] if isinstance(op, ast.Mult) else []


def _of_call(source: SourceFile, node: ast.Call, depth: int) -> list[float]:
    name = last_name(node.func)
    owner = node.func.value if isinstance(node.func, ast.Attribute) and not source.qualified_name(node.func) else None
    first = node.args[0] if node.args else None
    if name in ("zeros_like", "zeros", "new_zeros"):
        return [0.0]
    if name in ("ones_like", "ones", "new_ones"):
        return [1.0]
    if name in _FILLED:
        given = [each.value for each in node.keywords if each.arg == "fill_value"] or node.args[1:2]
        return numbers(source, given[0], depth) if given else []
    if name == "float" and isinstance(first, ast.Constant) and isinstance(first.value, str):
        return _parsed(first.value)
    if name in _TENSORS:
        value = first if name != "to" and first is not None else owner
        return numbers(source, value, depth) if value is not None else []
    return _of_values(source, possible_values(source, node), depth) if depth else []


def _parsed(text: str) -> list[float]:
    try:
        return [float(text)]
    except ValueError:
        return []


def _of_values(source: SourceFile, values: list[ast.expr], depth: int) -> list[float]:
    found = [numbers(source, each, depth - 1) for each in values]
    return [number for each in found for number in each] if all(found) else []


def _values(source: SourceFile, node: ast.expr) -> list[ast.expr]:
    """Return what a variable or attribute may be, also a default, an item of a class or a constant of another file."""
    values = list(possible_values(source, node))
    default = default_of(source, node)
    if default is not None:
        values.append(default)
    if values or not isinstance(node, ast.Attribute) or isinstance(node.value, ast.Call):  # torch.finfo(dtype).min
        return values
    written = [e for e in nodes_in(source.tree, ast.Assign, ast.AnnAssign) if e.value is not None]
    for each in written:
        targets = each.targets if isinstance(each, ast.Assign) else [each.target]
        if any(isinstance(t, ast.Name | ast.Attribute) and last_name(t) == node.attr for t in targets):
            values.append(each.value)  # type: ignore[arg-type]
    passed = [k.value for call in source.all_calls for k in call.keywords if k.arg == node.attr]
    return values + passed
