"""Finds losses of modules that rebuild their result from numbers: ``return torch.tensor([loss_a, loss_b]).sum()``."""

import ast
import re
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.queries.batch_loops import assigned_in, function_of, is_loss_call
from trueloop.analysis.queries.possible_values import is_without_gradients, origins
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import dotted_name, nodes_in

_COPIES: Final = frozenset(("tensor", "Tensor", "FloatTensor", "as_tensor"))
_LOSS_CLASS: Final = re.compile(r"loss|criterion|penalty|regulari[sz]", re.IGNORECASE)


def rebuilt_losses(source: SourceFile) -> Iterator[Hit]:
    """Yield each tensor that the ``forward`` of a loss module returns and that is built from the values of losses."""
    for call in source.all_calls:
        if last_name(call.func) not in _COPIES or not call.args or call.keywords[1:]:
            continue
        forward = function_of(source, call)
        owner = source.parents.get(id(forward))
        is_loss = isinstance(owner, ast.ClassDef) and bool(owner.bases) and _LOSS_CLASS.search(owner.name)
        if getattr(forward, "name", "") != "forward" or not is_loss or is_without_gradients(source, call):
            continue
        if _contains_losses(source, forward, call.args[0]) and _is_returned(source, forward, call):
            yield Hit(
                message=f"`{ast.unparse(call)}` is a new tensor without a graph, so the loss of `forward` has no "
                "gradient. Use `torch.stack` or `sum` for a list of losses.",
                node=call,
            )


def _contains_losses(source: SourceFile, forward: ast.FunctionDef, node: ast.expr) -> bool:
    """Return True if an expression is a loss or contains one, also in a list to which losses are appended."""
    parts = [node, *nodes_in(node, ast.Name)]
    values = [value for each in parts if isinstance(each, ast.Name) for value in assigned_in(forward, each.id)]
    names = {each.id for each in parts if isinstance(each, ast.Name)}
    for call in nodes_in(forward, ast.Call):
        if (
            isinstance(call.func, ast.Attribute)
            and call.func.attr == "append"
            and dotted_name(call.func.value) in names
        ):
            values += call.args
    items = [item for each in [node, *values] for item in getattr(each, "elts", [each])]
    items += [each.elt for each in [node, *values] if isinstance(each, ast.ListComp)]
    return any(is_loss_call(source, origin) for each in items for origin in origins(source, each, 2))


def _is_returned(source: SourceFile, forward: ast.FunctionDef, copy: ast.Call) -> bool:
    """Return True if all that a function returns is computed from a copy alone: a sum, another device."""
    returns = [each.value for each in nodes_in(forward, ast.Return) if each.value is not None]
    return bool(returns) and all(_inner(source, each) is copy for each in returns)


def _inner(source: SourceFile, node: ast.expr) -> ast.expr:
    """Return the tensor of ``tensor.to(device).sum()``, also through variables that are assigned once before."""
    for _ in range(8):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Call() | ast.Name() as inner, attr=attr)) if attr not in _COPIES:
                node = inner
            case ast.Name(id=name):
                values = assigned_in(function_of(source, node), name)
                node = values[-1] if values else node
            case _:
                break
    return node
