"""Finds collections of a model's parameters that hold no copies: ``[p.detach() for p in model.parameters()]``."""

import ast
from collections.abc import Container
from typing import Any, Final, NamedTuple

from trueloop.analysis.source_file import last_name

_WRAPPING: Final = frozenset(("dict", "list", "tuple", "OrderedDict"))
_SHARING: Final = frozenset(("asarray", "as_tensor", "from_numpy"))
"""Functions of NumPy and PyTorch that share the memory of their argument."""
_VIEWS: Final = frozenset(("data", "detach", "view", "numpy"))


class OwnTensors(NamedTuple):
    """A list or dictionary of a model's own tensors."""

    collected: ast.expr
    item: ast.expr | None
    """The expression of one of them; None if they are taken unchanged, as in ``list(model.parameters())``."""
    model: ast.expr


def own_tensors(value: ast.expr, more_views: Container[str] = ()) -> OwnTensors | None:
    """Return a collection of a model's own tensors; None for anything else.

    Args:
        value: the list or dictionary.
        more_views: further methods of a tensor that do not copy it, as ``cpu`` in a program that only uses the CPU.
    """
    collected = value
    while isinstance(value, ast.Call) and last_name(value.func) in _WRAPPING and len(value.args) == 1:
        value = value.args[0]
    match value:
        case ast.ListComp(elt=item) | ast.GeneratorExp(elt=item) if not isinstance(item, ast.Tuple):
            pass
        case ast.DictComp(value=item):
            pass
        case ast.GeneratorExp(elt=ast.Tuple(elts=[_, item])):
            pass
        case ast.Call(func=ast.Attribute(attr="parameters" | "named_parameters", value=model)):
            return OwnTensors(collected, None, model) if value is not collected else None
        case _:
            return None
    generator = value.generators[0]  # type: ignore[attr-defined]
    model = model_of_parameters(generator.iter)
    return (
        None if model is None or not is_view(item, generator.target, more_views) else OwnTensors(collected, item, model)
    )


def model_of_parameters(iterable: ast.expr) -> ast.expr | None:
    """Return the model whose parameters an expression yields, as ``model.named_parameters()`` does."""
    match iterable:
        case ast.Call(func=ast.Attribute(attr="parameters" | "named_parameters", value=model)):
            return model
        case ast.Call(
            func=ast.Attribute(
                attr="items" | "values",
                value=ast.Call(func=ast.Attribute(attr="state_dict", value=model))
                | ast.Call(
                    func=ast.Name(id="dict"),
                    args=[ast.Call(func=ast.Attribute(attr="named_parameters", value=model))],
                ),
            )
        ):
            return model
        case _:
            return None


def is_view(item: ast.expr, target: Any, more_views: Container[str] = ()) -> bool:
    """Return True if an expression has the memory of the tensor of a loop: ``p.detach()``."""
    item = viewed(item, more_views)
    tensor = target.elts[-1] if isinstance(target, ast.Tuple) else target
    return isinstance(item, ast.Name) and isinstance(tensor, ast.Name) and item.id == tensor.id


def viewed(item: ast.expr, more_views: Container[str] = ()) -> ast.expr:
    """Return the tensor with whose memory an expression such as ``p.data.detach()`` is made."""
    while isinstance(item, ast.Attribute | ast.Call):
        match item:
            case ast.Call(func=ast.Attribute(attr=name), args=[inner], keywords=[]) if name in _SHARING:
                item = inner
                continue
            case _:
                pass
        function = item.func if isinstance(item, ast.Call) else item
        if not isinstance(function, ast.Attribute) or not (function.attr in _VIEWS or function.attr in more_views):
            break
        item = function.value
    return item
