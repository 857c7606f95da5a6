"""Finds averages that begin again from the trained weights in each update, in the source."""

import ast
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import dotted_name, nodes_in

_STATES: Final = frozenset(("parameters", "state_dict", "named_parameters"))
_TRAINING: Final = frozenset(("backward", "step", "fit"))


def find_copied_anew(source: SourceFile) -> Iterator[Hit]:
    """Yield each copy of a model in a training loop that is mixed with the model in the same iteration."""
    for statement in source.nodes_of(ast.Assign):
        match statement:
            case ast.Assign(
                targets=[ast.Name() | ast.Attribute() as average], value=ast.Call(args=[model, *_]) as copy
            ):
                pass
            case _:
                continue
        names = {dotted_name(average), dotted_name(model)}
        if last_name(copy.func) not in ("deepcopy", "AveragedModel") or len(names) < 2 or "" in names:
            continue
        following = source.block(statement)
        following = following[following.index(statement) + 1 :]
        mixed = next((each for each in following if _mixes(each, names)), None)
        between = following[: following.index(mixed)] if mixed is not None else []
        is_trained = any(last_name(call.func) in _TRAINING for each in between for call in nodes_in(each, ast.Call))
        if not isinstance(source.parents[id(statement)], ast.For | ast.While) or is_trained:
            continue
        if mixed is not None:
            yield Hit(
                message=f"`{ast.unparse(average)}` is a new copy of `{ast.unparse(model)}` in every iteration, so its "
                "average with the same weights is equal to them. Copy once, before the loop.",
                node=copy,
                related=((mixed, "averaged here"),),
            )


def _mixes(statement: ast.stmt, names: set[str]) -> bool:
    """Return True if a statement combines the weights of two models: ``for slow, fast in zip(...)``."""
    match statement:
        case ast.With(body=[inner, *_]):
            return _mixes(inner, names)
        case ast.For(iter=iterable):
            methods = [each.func for each in nodes_in(iterable, ast.Call) if isinstance(each.func, ast.Attribute)]
            return names <= {dotted_name(each.value) for each in methods if each.attr in _STATES}
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr="update_parameters", value=owner), args=[model])):
            return {dotted_name(owner), dotted_name(model)} == names
        case _:
            return False
