"""Finds code that reads or sets an optimizer's settings, as attributes or in parameter groups."""

import ast
from typing import Final

from trueloop.core.source_text import dotted_name

SETTINGS: Final = frozenset(("lr", "weight_decay", "momentum", "betas", "eps", "nesterov", "amsgrad", "dampening"))
"""Settings of PyTorch's optimizers that programs change."""
_OPTIMIZER_ATTRIBUTES: Final = SETTINGS | {
    "step", "zero_grad", "param_groups", "add_param_group", "state", "state_dict", "load_state_dict", "defaults",
}  # fmt: skip
_BY_NAME: Final = frozenset(("getattr", "hasattr", "attrgetter"))


def is_read_from_optimizer(tree: ast.AST, name: str) -> bool:
    """Return True if source code may read an attribute of an optimizer, also by its name as a string.

    Objects with attributes that no optimizer has, such as ``args`` with ``args.epochs``, are excluded, and ``self``.
    """
    if any(isinstance(each.ctx, ast.Load) for each in _attributes_of_optimizers(tree, name)):
        return True
    calls = (each for each in ast.walk(tree) if isinstance(each, ast.Call))
    named = (each for each in calls if dotted_name(each.func).rpartition(".")[2] in _BY_NAME)
    return any(isinstance(arg, ast.Constant) and arg.value == name for each in named for arg in each.args)


def lines_setting_attribute(tree: ast.AST, name: str) -> list[int]:
    """Return the lines that set an attribute of an object that may be an optimizer."""
    return [each.lineno for each in _attributes_of_optimizers(tree, name) if isinstance(each.ctx, ast.Store)]


def _attributes_of_optimizers(tree: ast.AST, name: str) -> list[ast.Attribute]:
    attributes = [each for each in ast.walk(tree) if isinstance(each, ast.Attribute)]
    others = {dotted_name(each.value) for each in attributes if each.attr not in _OPTIMIZER_ATTRIBUTES} - {""} | {
        "self"
    }
    return [each for each in attributes if each.attr == name and dotted_name(each.value) not in others]


def sets_in_groups(tree: ast.AST, name: str, ignored: frozenset[int]) -> bool:
    """Return True if source code sets a dictionary item: ``group["lr"] = 0.1``, ``group.update(lr=0.1)``.

    Args:
        tree: the syntax tree.
        name: key of the item.
        ignored: ids of assignment targets to ignore.
    """
    for each in ast.walk(tree):
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
