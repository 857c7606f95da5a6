"""Finds code that sets an optimizer's settings in parameter groups."""

import ast

from trueloop.core.source_text import walk


def sets_in_groups(tree: ast.AST, name: str, ignored: frozenset[int] = frozenset()) -> bool:
    """Return True if source code sets a dictionary item: ``group["lr"] = 0.1``, ``group.update(lr=0.1)``.

    Args:
        tree: the syntax tree.
        name: key of the item.
        ignored: ids of assignment targets to ignore.
    """
    for each in walk(tree):
        if isinstance(each, ast.Subscript) and isinstance(each.ctx, ast.Store) and id(each) not in ignored:
            keys: list[ast.expr | None] = [each.slice]
        elif isinstance(each, ast.Call) and getattr(each.func, "attr", "") == "update":
            keys = [key for one in each.args if isinstance(one, ast.Dict) for key in one.keys]
            if any(one.arg == name for one in each.keywords):
                return True
        else:
            continue
        if any(isinstance(key, ast.Constant) and key.value == name for key in keys):
            return True
    return False
