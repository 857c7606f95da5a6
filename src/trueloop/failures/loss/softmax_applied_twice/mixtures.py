"""Finds probabilities that are combined: the weighted sum or the mean of several softmax outputs."""

import ast
from typing import Final

from trueloop.analysis.abstract_value import FORWARD_RESULT, SUBMODULE, AbstractValue, ValueKind
from trueloop.analysis.queries.activations import SIGMOID, SOFTMAX, VIEWS
from trueloop.core.source_text import nodes_in


def _operation(*names: str) -> frozenset[str]:
    """Return the names of functions and methods of tensors."""
    return frozenset(f"{owner}.{name}" for owner in ("torch", "torch.Tensor") for name in names)


_KEEPING: Final = VIEWS | _operation("contiguous", "clamp", "clamp_min", "clip", "float", "to", "stack")
_SUM: Final = _operation("sum")
_MEAN: Final = _operation("mean")
_PRODUCTS: Final = _operation("bmm", "matmul", "mm", "einsum") | {"binary MatMult"}
_ZEROS: Final = frozenset(("torch.zeros", "torch.zeros_like", "torch.Tensor.new_zeros"))
_MAX_DEPTH: Final = 16


def mixed_softmax(value: AbstractValue) -> ast.AST | None:
    """Return the code of a softmax of which a value is a mean, or a sum with weights below 1; None if it is neither.

    A single softmax is none, nor is one that is multiplied or divided by a number, which may be a temperature.
    """
    last: AbstractValue | None = value
    while last is not None and (FORWARD_RESULT in last.attributes or last.union or last.name in VIEWS):
        parts = _parts(last)
        last = parts[0] if len(parts) == 1 else None
    return None if last is None or last.name in SOFTMAX else _softmax_in(last, _MAX_DEPTH)


def _softmax_in(value: AbstractValue, depth: int) -> ast.AST | None:
    """Return the code of the softmax over the classes that a value is, or is a mixture of."""
    if value.name in SOFTMAX and not isinstance(value.node, ast.Subscript):
        return value.node if _dimension(value) in (None, 1, -1) else None
    inner = value.attributes.get(FORWARD_RESULT)
    if inner is not None and inner.kind is not ValueKind.TENSOR:
        return _of_module(inner)
    found = [_softmax_in(each, depth - 1) for each in _parts(value)] if depth else []
    return found[0] if found and all(found) else None


def _parts(value: AbstractValue) -> list[AbstractValue]:
    """Return the values that are all probabilities if a value is one or a mixture of them; [] if it may be neither."""
    inner, first = value.attributes.get(FORWARD_RESULT), list(value.sources[:1])
    if inner is not None:
        return [] if _has_classes(value) else [inner]
    if value.union or value.kind is ValueKind.SEQUENCE:
        return [each for each in value.union or value.sources if each.name not in _ZEROS]
    if isinstance(value.node, ast.Subscript) or (value.name in _MEAN and _dimension(value) in (None, -1)):
        return []
    if value.name in _KEEPING | _SUM | _MEAN | {"builtins.sum"}:
        return first
    if value.name in _PRODUCTS and len(value.sources) > 1:
        weight, mixed = value.sources[-2:]
        return [mixed] if _is_weight(weight) else []
    return _operands(value)


def _operands(value: AbstractValue) -> list[AbstractValue]:
    """Return the probabilities in ``(p + q) / 2``, ``weight * p`` and ``a * p + (1 - a) * q``."""
    match value.name, value.sources:
        case "binary Div", (total, _) if total.name in _SUM | {"builtins.sum", "binary Add"}:
            return [total]
        case "binary Mult", (left, right):
            return [right] if _is_weight(left) else [left] if _is_weight(right) else []
        case "binary Add", (left, right):
            if left.name == right.name == "binary Mult" and (mixed := _interpolated(left, right)):
                return mixed
            return [each for each in (left, right) if each.name not in _ZEROS and not _is_number(each)]
        case _:
            return []


def _of_module(module: AbstractValue) -> ast.AST | None:
    """Return the last softmax of a module, or of all modules of a ``ModuleList`` of which it is one."""
    if SUBMODULE in module.facts:
        members = module.sources[0].sources if module.sources else ()
        found = [_of_module(each) for each in members]
        return found[0] if found and all(found) else None
    definition = getattr(module.scope, "node", None)
    if isinstance(definition, ast.ClassDef):
        return _returned_softmax(definition)
    last = module.last_layer()
    return last.node if last.name in SOFTMAX else None


def _returned_softmax(definition: ast.ClassDef) -> ast.AST | None:
    """Return the softmax that the ``forward`` of a class returns; None if it may return anything else."""
    forward = next((e for e in definition.body if isinstance(e, ast.FunctionDef) and e.name == "forward"), None)
    match [each.value for each in nodes_in(forward, ast.Return)] if forward is not None else []:
        case [ast.Call(func=ast.Attribute(attr="softmax") | ast.Name(id="softmax")) as softmax]:
            return softmax
        case _:
            return None


def _dimension(value: AbstractValue) -> int | None:
    """Return the dimension of a softmax, a sum or a mean; None if it is not given, or unknown."""
    is_method = not value.name.startswith("torch.") or value.name.startswith(("torch.Tensor.", "torch.nn.Softmax"))
    given = value.arguments.get("dim") or value.arguments.get("0" if is_method else "1")
    dimension = given.constant() if given is not None else None
    return dimension if isinstance(dimension, int) else None


def _is_number(value: AbstractValue) -> bool:
    return value.kind is ValueKind.CONSTANT


def _is_weight(value: AbstractValue) -> bool:
    """Return True for a softmax or a sigmoid, also a part of it, for ``1 - weight``, ``w / w.sum()`` and 0.5."""
    if _is_number(value):
        return isinstance(value.value, int | float) and 0 < value.value <= 1
    if value.name in SOFTMAX | SIGMOID:
        return True
    first = value.sources[0] if value.sources else None
    if first is not None and (value.name in _KEEPING or isinstance(value.node, ast.Subscript)):
        return _is_weight(first)
    is_normalised = value.name == "binary Div" and value.sources[-1].name in _SUM
    return is_normalised or _is_complement(value)


def _is_complement(value: AbstractValue) -> bool:
    return value.name == "binary Sub" and value.sources[0].constant() == 1


def _interpolated(left: AbstractValue, right: AbstractValue) -> list[AbstractValue]:
    """Return p and q of ``a * p + (1 - a) * q``, whatever ``a`` is; [] for other products."""
    for one, other in ((left, right), (right, left)):
        for complement, mixed in (one.sources, one.sources[::-1]):
            if _is_complement(complement):
                weight = ast.dump(complement.sources[1].node)
                return [mixed, *(each for each in other.sources if ast.dump(each.node) != weight)]
    return []


def _has_classes(output: AbstractValue) -> bool:
    """Return True for an output of a model that may be of one of several classes."""
    return any(getattr(each.scope, "union", ()) for each in output.sources[:1] if each.kind is ValueKind.MODEL)
