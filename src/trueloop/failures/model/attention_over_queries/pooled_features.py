"""Finds attention pooling whose weights are normalised over the samples, or over their only score, in the source."""

import ast
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.possible_values import computed_from, origins, possible_values
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import integer, nodes_in

_SAME_DIMENSIONS: Final = frozenset((
    "to", "float", "half", "type_as", "expand", "expand_as", "contiguous", "clone", "masked_fill", "masked_fill_",
))  # fmt: skip
_ACTIVATIONS: Final = frozenset(("tanh", "relu", "leaky_relu", "sigmoid", "elu", "gelu"))
_SQUEEZING: Final = frozenset(("squeeze", "view", "reshape"))
_MODULES: Final = frozenset(("torch", "F", "nn", "functional"))
_LAST: Final = (-1, 2)
_MAX_DEPTH: Final = 6


class _Weights(NamedTuple):
    """The softmax behind some weights."""

    softmax: ast.Call
    scores: ast.expr
    """Its argument, or the call of the layers that end in it."""


def find_pooling(source: SourceFile) -> Iterator[Hit]:
    """Yield each softmax over the batch whose result weights features that are added up over another dimension."""
    if not any(last_name(each.func).lower() == "softmax" for each in source.all_calls):
        return
    for total in source.all_calls:
        for weights, features, dimension in _weighted_sums(source, total):
            found = _weights(source, weights, _MAX_DEPTH)
            if found is None:
                continue
            over = softmax_dimension(found.softmax)
            is_ones = over in _LAST and dimension == 1 and _is_single_score(source, found.scores)
            is_over_batch = over == 0 and dimension > 0 and not _are_samples_reduced(source, found.scores)
            if over == 1 and dimension == 0:  # features of [T, B, ...]
                is_over_batch = _is_single_score(source, found.scores, _ACTIVATIONS | _SQUEEZING)
            if (
                not (is_over_batch or is_ones)
                or _is_divided(source, weights)
                or not _is_scored(source, weights, features)
            ):
                continue
            what = "the only score of each position, so all weights are 1" if is_ones else "the samples of the batch"
            yield Hit(
                message=f"`{ast.unparse(found.softmax)}` normalises over {what}, but `{ast.unparse(total)}` adds "
                f"the weighted features up over dimension {dimension}.",
                node=found.softmax,
                related=((total, "added up here"),),
            )


def softmax_dimension(call: ast.Call) -> int | None:
    """Return the constant dimension of a softmax; None for other calls."""
    node = dimension_argument(call)
    return None if node is None else integer(node)


def dimension_argument(call: ast.Call) -> ast.expr | None:
    """Return the argument with the dimension of ``softmax(x, dim)``, ``x.softmax(dim)`` or ``nn.Softmax(dim)``."""
    if last_name(call.func).lower() != "softmax":
        return None
    named = next((each.value for each in call.keywords if each.arg in ("dim", "axis")), None)
    return named or next((each for each in call.args if integer(each) is not None), None)


def _weighted_sums(source: SourceFile, call: ast.Call) -> Iterator[tuple[ast.expr, ast.expr, int]]:
    """Yield the factors of ``(weights * features).sum(dim=1)`` in both orders, and those of ``bmm``."""
    name, (owner, arguments) = last_name(call.func), _operands(call)
    is_summed_again = isinstance(source.parents.get(id(call)), ast.Attribute)
    if name == "sum" and owner is not None and not is_summed_again:
        dimension = integer(next((e.value for e in call.keywords if e.arg in ("dim", "axis")), (*arguments, None)[0]))
        products = [owner, *(possible_values(source, owner) if isinstance(owner, ast.Name) else ())]
        for left, right in filter(None, map(_factors, products)):
            if dimension in (0, 1, 2):
                yield left, right, dimension
                yield right, left, dimension
    elif name in ("bmm", "matmul") and owner is not None and len(arguments) == 1:
        weights = _transposed(owner) or (_row(owner) if name == "bmm" else None)
        if weights is not None:
            yield weights, arguments[0], 1


def _operands(call: ast.Call) -> tuple[ast.expr | None, list[ast.expr]]:
    """Return the first operand and the other arguments of ``torch.f(x, y)`` or ``x.f(y)``."""
    func = call.func
    if isinstance(func, ast.Attribute) and not (isinstance(func.value, ast.Name) and func.value.id in _MODULES):
        return func.value, call.args
    return (call.args[0] if call.args else None), call.args[1:]


def _factors(node: ast.expr) -> tuple[ast.expr, ast.expr] | None:
    match node:
        case ast.BinOp(op=ast.Mult(), left=left, right=right):
            return left, right
        case ast.Call() if last_name(node.func) in ("mul", "multiply"):
            owner, arguments = _operands(node)
            return (owner, arguments[0]) if owner is not None and len(arguments) == 1 else None
        case _:
            return None


def _transposed(node: ast.expr) -> ast.expr | None:
    """Return the tensor of ``weights.transpose(1, 2)``, which has three dimensions."""
    match node:
        case ast.Call(func=ast.Attribute(value=inner, attr="transpose" | "permute" | "swapaxes"), args=args):
            return inner if [integer(each) for each in args] in ([1, 2], [2, 1], [0, 2, 1]) else None
        case _:
            return None


def _row(node: ast.expr) -> ast.expr | None:
    """Return the tensor of ``weights.unsqueeze(1)``."""
    match node:
        case ast.Call(func=ast.Attribute(value=inner, attr="unsqueeze"), args=[size]):
            return inner if integer(size) == 1 else None
        case _:
            return None


def _weights(source: SourceFile, node: ast.expr, depth: int) -> _Weights | None:
    """Return the softmax that computes some weights, behind changes that keep the first dimension."""
    if isinstance(node, ast.Call):
        owner, _ = _operands(node)
        is_softmax = last_name(node.func) == "softmax" and owner is not None and softmax_dimension(node) is not None
        found = _Weights(node, owner) if is_softmax and owner is not None else _softmax_layer(source, node)
        if found is not None:
            return found
    inner = _same_samples(node)
    values = [inner] if inner is not None else possible_values(source, node)
    return _weights(source, values[0], depth - 1) if depth and len(values) == 1 else None


def _same_samples(node: ast.expr) -> ast.expr | None:
    """Return the tensor behind an operation that keeps the first dimension and its values, or scales them."""
    if isinstance(node, ast.Subscript):  # weights[..., None]
        first = node.slice.elts[0] if isinstance(node.slice, ast.Tuple) else node.slice
        return node.value if isinstance(first, ast.Slice) or getattr(first, "value", 0) is Ellipsis else None
    if not isinstance(node, ast.Call):
        return None
    (owner, arguments), name = _operands(node), last_name(node.func)
    changes_later = name in ("unsqueeze", "squeeze") and [integer(e) for e in arguments[:1]] in ([-1], [1], [2])
    if name in _SAME_DIMENSIONS or changes_later:
        return owner
    return node.args[0] if "drop" in name.lower() and node.args else None


def _softmax_layer(source: SourceFile, call: ast.Call) -> _Weights | None:
    """Return the layer of a call of ``nn.Softmax(dim=0)``, or of a ``Sequential`` that ends in one."""
    for layer in _last_layers(source, call.func):
        if last_name(layer.func) == "Softmax" and softmax_dimension(layer) is not None:
            return _Weights(layer, call.args[0] if call.args and not _is_sequential(source, call.func) else call)
    return None


def _last_layers(source: SourceFile, node: ast.expr) -> Iterator[ast.Call]:
    """Yield the layers that a variable or attribute may have, the last one of a ``Sequential``."""
    for each in (node, *possible_values(source, node)):
        if isinstance(each, ast.Call):
            is_sequence = last_name(each.func) == "Sequential" and bool(each.args)
            last: Any = each.args[-1] if is_sequence else each
            if isinstance(last, ast.Call):
                yield last


def _is_sequential(source: SourceFile, node: ast.expr) -> bool:
    return any(isinstance(e, ast.Call) and last_name(e.func) == "Sequential" for e in possible_values(source, node))


def _is_single_score(source: SourceFile, scores: ast.expr, behind: frozenset[str] = _ACTIVATIONS) -> bool:
    """Return True for the result of a linear layer with a single output, perhaps behind some functions."""
    values = [_behind(each, behind) for each in origins(source, _behind(scores, behind), 1)]
    for each in values:
        for layer in _last_layers(source, each.func) if isinstance(each, ast.Call) else ():
            size = next((e.value for e in layer.keywords if e.arg == "out_features"), (*layer.args, None, None)[1])
            if last_name(layer.func) == "Linear" and integer(size) == 1:
                return True
    return False


def _are_samples_reduced(source: SourceFile, scores: ast.expr) -> bool:
    """Return True for ``self.score(x).mean(dim=0)``, whose first dimension is not that of the samples."""
    for each in computed_from(source, scores, _MAX_DEPTH):
        if isinstance(each, ast.Call) and last_name(each.func) in ("mean", "sum", "max", "amax", "select"):
            given = [*each.args, *(word.value for word in each.keywords if word.arg in ("dim", "axis"))]
            if any(integer(argument) == 0 for argument in given):
                return True
    return False


def _behind(node: ast.expr, functions: frozenset[str]) -> ast.expr:
    """Return x of ``torch.tanh(x)`` and ``x.squeeze(2)``."""
    while isinstance(node, ast.Call) and last_name(node.func) in functions:
        inner, _ = _operands(node)
        if inner is None:
            break
        node = inner
    return node


def _is_scored(source: SourceFile, weights: ast.expr, features: ast.expr) -> bool:
    """Return True if layers compute the weights from the same variable as the features."""
    names = _names(source, features)
    nodes = list(computed_from(source, weights, _MAX_DEPTH))
    has_layer = any(
        isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute) and last_name(each.func.value) == "self"
        for each in nodes
    )
    function = function_of(source, features)
    return has_layer and any(
        isinstance(each, ast.Name) and each.id in names and function_of(source, each) is function for each in nodes
    )


def _names(source: SourceFile, features: ast.expr) -> set[str]:
    """Return the variables of an expression and, without it, those that its value was computed from."""
    function = function_of(source, features)
    nodes = computed_from(source, features, 2)
    found = {each.id for each in nodes if isinstance(each, ast.Name) and function_of(source, each) is function}
    return found - {"self", *_MODULES}


def _is_divided(source: SourceFile, weights: ast.expr) -> bool:
    """Return True if a function adds up the weights alone, perhaps to divide by their sum."""
    text = ast.unparse(weights)
    calls = [each for each in nodes_in(function_of(source, weights), ast.Call) if last_name(each.func) == "sum"]
    return any(owner is not None and ast.unparse(owner) == text for owner, _ in map(_operands, calls))
