"""Finds settings whose variable the loss of a batch overwrites, so that later comparisons are false."""

import ast
from collections.abc import Iterator

from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.source_text import nodes_in


def settings_lost_to_loss(source: SourceFile) -> Iterator[Hit]:
    """Yield each comparison of a setting, such as ``if loss == "mse"``, whose loop assigns the loss to its variable."""
    seen = set[int]()
    for loop in source.nodes_of(ast.For, ast.While):
        compared = [each for each in nodes_in(loop, ast.Compare) if _is_of_setting(each)]
        calls = nodes_in(loop, ast.Call) if compared else ()
        differentiated = {
            each.func.value.id
            for each in calls
            if isinstance(each.func, ast.Attribute)
            and each.func.attr == "backward"
            and isinstance(each.func.value, ast.Name)
        }
        for each in compared:
            name = each.left.id if isinstance(each.left, ast.Name) else ""
            stores = [n for n in nodes_in(loop, ast.Name) if n.id == name and isinstance(n.ctx, ast.Store)]
            if name not in differentiated or not stores or id(each) in seen:
                continue
            if all(n.lineno > each.lineno for n in stores):
                seen.add(id(each))
                yield Hit(
                    message=f"`{ast.unparse(each)}` compares a loss: the loop assigns it to `{name}`, so the setting "
                    "is lost after the first iteration.",
                    node=each,
                    related=((stores[0], "overwritten here"),),
                )


def _is_of_setting(node: ast.Compare) -> bool:
    """Return True for a comparison of a variable with a text or a number of a choice, not with 0."""
    match node:
        case ast.Compare(left=ast.Name(), ops=[ast.Eq()], comparators=[ast.Constant(value=value)]):
            return isinstance(value, str | int) and value != 0
        case _:
            return False
