"""Finds attention weights that are normalised over another dimension than the keys, in the source."""

import ast
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.possible_values import computed_from
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Fix, integer, nodes_in, walk
from trueloop.failures.failure import Rule
from trueloop.failures.model.attention_over_queries.pooled_features import (
    dimension_argument,
    find_pooling,
    softmax_dimension,
)

_PRODUCTS: Final = ("matmul", "bmm")
_TRANSPOSES: Final = ("transpose", "permute", "swapaxes", "t")
_MAX_STEPS: Final = 12


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each softmax of scores whose result is multiplied with values, over another dimension than the last.

    The same goes for pooled features, see `find_pooling`.
    """
    yield from find_pooling(source)
    for function in source.nodes_of(ast.FunctionDef):
        called = {last_name(each.func) for each in nodes_in(function, ast.Call)}
        if any(each.lower() == "softmax" for each in called):
            yield from _in_function(source, function)


def _in_function(source: SourceFile, function: ast.FunctionDef) -> Iterator[Hit]:
    assigned: dict[str, list[ast.expr]] = {}
    for each in nodes_in(function, ast.Assign):
        if len(each.targets) == 1 and isinstance(each.targets[0], ast.Name):
            assigned.setdefault(each.targets[0].id, []).append(each.value)
    summed = {
        ast.unparse(part)
        for each in nodes_in(function, ast.Call)
        if last_name(each.func) in ("sum", "norm", "normalize")
        for part in (getattr(each.func, "value", each.func), *each.args[:1])
    }
    """What is added up in the function, perhaps to divide by it."""
    found: dict[int, Hit] = {}
    for product in walk(function):
        weights = _left_factor(product)
        softmax = None if weights is None else _softmax_behind(weights, assigned, product)
        names = [name for name, values in assigned.items() if any(softmax is each for each in values)]
        if softmax is None or weights is None or summed.intersection([*names, ast.unparse(weights)]):
            continue
        scores = _scores(softmax, assigned)
        dimensions = _dimensions(scores, product)
        over, argument = softmax_dimension(softmax), dimension_argument(softmax)
        if scores is None or over is None or argument is None or over == -1 or over == (dimensions or 0) - 1:
            continue
        if over in (0, -2) or (dimensions is not None and over < dimensions - 1):
            found[id(softmax)] = Hit(
                message=f"`{ast.unparse(softmax)}` does not normalise over the keys: "
                f"`{ast.unparse(product)}` sums over the last dimension of the weights.",
                node=softmax,
                related=((product, "multiplied with the values here"),),
                fix=Fix(
                    (source.text.replace(argument, "-1"),), safe=False, description="Normalise over the last dimension"
                ),
            )
    yield from found.values()
    yield from _einsums(source, function, assigned, summed)


def _einsums(
    source: SourceFile, function: ast.FunctionDef, assigned: dict[str, list[ast.expr]], summed: set[str]
) -> Iterator[Hit]:
    """Yield each softmax over a letter that the ``einsum`` with the values keeps, where it sums over another one."""
    for product in nodes_in(function, ast.Call):
        for weights, letters, result in _einsum_factors(product):
            softmax = _softmax_behind(weights, assigned, product)
            over = None if softmax is None else softmax_dimension(softmax)
            is_used = summed.intersection([ast.unparse(weights)])
            if softmax is None or over is None or is_used or not -len(letters) <= over < len(letters):
                continue
            keys = [each for each in letters if each not in result]
            if keys and letters[over] in result and _is_of_products(source, softmax, len(letters)):
                yield Hit(
                    message=f"`{ast.unparse(softmax)}` normalises over `{letters[over]}` of `{letters}`, but "
                    f"`{ast.unparse(product)}` sums over `{', '.join(keys)}`, the keys.",
                    node=softmax,
                    related=((product, "multiplied with the values here"),),
                )


def _einsum_factors(call: ast.Call) -> Iterator[tuple[ast.expr, str, str]]:
    """Yield both factors of ``einsum("bqk,bkd->bqd", a, b)``, with the letters of their dimensions and the result's."""
    match call:
        case ast.Call(args=[ast.Constant(value=str(equation)), *factors]) if last_name(call.func) == "einsum":
            inputs, arrow, result = equation.replace(" ", "").partition("->")
            letters = inputs.split(",")
            if arrow and len(letters) == len(factors) == 2 and equation.isascii() and "." not in equation:
                yield from ((factor, each, result) for factor, each in zip(factors, letters, strict=True))
        case _:
            pass


def _is_of_products(source: SourceFile, softmax: ast.Call, dimensions: int) -> bool:
    """Return True if a softmax is that of products of two tensors that are no parameters, such as queries and keys."""
    return any(
        len(result) == dimensions and not any(isinstance(each, ast.Attribute) for each in call.args[1:])
        for call in computed_from(source, softmax, 3)
        if isinstance(call, ast.Call)
        for _, _, result in _einsum_factors(call)
    )


def _left_factor(node: ast.AST) -> ast.expr | None:
    """Return the left factor of a product of matrices; None for other nodes."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        return node.left
    if not isinstance(node, ast.Call) or last_name(node.func) not in _PRODUCTS:
        return None
    if len(node.args) == 2:
        return node.args[0]
    return node.func.value if isinstance(node.func, ast.Attribute) and len(node.args) == 1 else None


def _softmax_behind(node: ast.expr, assigned: dict[str, list[ast.expr]], user: Any) -> ast.Call | None:
    """Return the softmax that makes some weights, maybe with dropout or another type."""
    for _ in range(_MAX_STEPS):
        match node:
            case ast.Name(id=name):
                earlier = [each for each in assigned.get(name, []) if each.lineno <= user.lineno and each is not user]
                if not earlier or any(each is user for each in walk(earlier[-1])):
                    return None
                user = node = earlier[-1]
            case ast.Call() if last_name(node.func) == "softmax" and softmax_dimension(node) is not None:
                return node
            case ast.Call(args=[first, *_]) if "drop" in last_name(node.func).lower():
                node = first
            case ast.Call(func=ast.Attribute(value=owner, attr="to" | "float" | "type_as" | "half")):
                node = owner
            case _:
                return None
    return None


def _scores(softmax: ast.Call, assigned: dict[str, list[ast.expr]]) -> ast.AST | None:
    """Return the product of queries and transposed keys whose softmax is computed; None if there is none."""
    owner = softmax.func.value if isinstance(softmax.func, ast.Attribute) else None
    is_method = not (isinstance(owner, ast.Name) and owner.id in ("torch", "F", "nn", "functional", "special"))
    pending = [owner] if owner is not None and is_method and len(softmax.args) < 2 else list(softmax.args[:1])
    user: ast.AST = softmax
    for _ in range(_MAX_STEPS):
        node = pending.pop(0) if pending else None
        factor = None if node is None else _left_factor(node)
        if factor is not None:
            return node if _right_is_transposed(node, assigned) else None
        match node:
            case ast.Name(id=name):
                earlier = [each for each in assigned.get(name, []) if each.lineno < user.lineno]
                pending += earlier[-1:]
                user = earlier[-1] if earlier else user
            case ast.BinOp(left=left, op=ast.Mult() | ast.Div() | ast.Add() | ast.Sub(), right=right):
                pending += [left, right]
            case ast.Call(func=ast.Attribute(value=inner, attr="masked_fill" | "masked_fill_" | "div" | "mul")):
                pending.append(inner)
            case _:
                pass
    return None


def _right_is_transposed(product: Any, assigned: dict[str, list[ast.expr]]) -> bool:
    return _transpose(product, assigned) is not None


def _transpose(product: Any, assigned: dict[str, list[ast.expr]] | None = None) -> ast.expr | None:
    """Return the right factor of a product if it is transposed there."""
    right = product.right if isinstance(product, ast.BinOp) else product.args[-1]
    if isinstance(right, ast.Name) and assigned and len(assigned.get(right.id, [])) == 1:
        right = assigned[right.id][0]
    if isinstance(right, ast.Attribute):
        return right if right.attr in ("T", "mT") else None
    return right if isinstance(right, ast.Call) and last_name(right.func) in _TRANSPOSES else None


def _dimensions(scores: Any, product: Any) -> int | None:
    """Return the number of dimensions of scores; None if it is unknown."""
    if scores is None:
        return None
    if any(isinstance(each, ast.Call) and last_name(each.func) == "bmm" for each in (scores, product)):
        return 3
    right = _transpose(scores)
    if isinstance(right, ast.Attribute):
        return 2 if right.attr == "T" else None
    arguments = [integer(each) for each in right.args] if isinstance(right, ast.Call) else []
    numbers = [each for each in arguments if each is not None]
    if isinstance(right, ast.Call) and last_name(right.func) == "t":
        return 2
    return max(numbers) + 1 if numbers and min(numbers) >= 0 and len(numbers) == len(arguments) else None


RULE = Rule(required_words=("softmax(|Softmax(", "matmul|bmm|@|einsum(|.sum(&forward"), find=find)
