"""Finds datasets of overlapping windows of a series whose windows are split at random."""

import ast
from collections.abc import Iterator
from typing import Any

from trueloop.analysis.queries.class_instances import definitions
from trueloop.analysis.queries.possible_values import origins
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import nodes_in


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each ``random_split`` of a dataset whose samples begin one step after the other."""
    for call in source.all_calls:
        if last_name(call.func) != "random_split" or not call.args:
            continue
        for value in origins(source, call.args[0]):
            kind = definitions(source).classes.get(last_name(value.func)) if isinstance(value, ast.Call) else None
            window = None if kind is None else _window(kind)
            if window is not None:
                yield Hit(
                    message=f"The samples of `{ast.unparse(call.args[0])}` are overlapping windows, "
                    f"`{ast.unparse(window)}`: split at random, nearly every held-out window shares its steps with a "
                    "training window. Split the series by time first.",
                    node=call,
                    related=((window, "a window"),),
                )
                break


def _window(kind: ast.ClassDef) -> ast.Subscript | None:
    """Return ``x[i:i + length]`` in the ``__getitem__(self, i)`` of a dataset; None if a window starts elsewhere."""
    for method in kind.body:
        if not isinstance(method, ast.FunctionDef) or method.name != "__getitem__" or len(method.args.args) < 2:
            continue
        index = method.args.args[1].arg
        stores: list[Any] = [each for each in nodes_in(method, ast.Name) if isinstance(each.ctx, ast.Store)]
        if any(each.id == index for each in stores):
            return None
        for item in nodes_in(method, ast.Subscript):
            match item.slice:
                case ast.Slice(lower=ast.Name(id=first), upper=ast.BinOp(op=ast.Add(), left=ast.Name(id=second))) if (
                    first == second == index
                ):
                    return item
                case _:
                    pass
    return None
