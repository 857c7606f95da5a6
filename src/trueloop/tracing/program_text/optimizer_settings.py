"""Knows the settings in parameter groups, and finds code that reads or sets them as optimizer attributes."""

import ast
from typing import Final

from trueloop.core.source_text import dotted_name

SETTINGS: Final = frozenset(("lr", "weight_decay", "momentum", "betas", "eps", "nesterov", "amsgrad", "dampening"))
"""Settings of PyTorch's optimizers that programs change."""
_OPTIMIZER_ATTRIBUTES: Final = SETTINGS | {
    "step", "zero_grad", "param_groups", "add_param_group", "state", "state_dict", "load_state_dict", "defaults",
}  # fmt: skip
_BY_NAME: Final = frozenset(("getattr", "hasattr", "attrgetter"))


def is_read_from_optimizer(tree: ast.AST, word: str) -> bool:
    """Return True if a source may read an attribute of an optimizer, also by its name as a string.

    An object with attributes that no optimizer has, such as ``args`` with ``args.epochs``, is excluded, and ``self``.
    """
    if any(isinstance(each.ctx, ast.Load) for each in _attributes_of_optimizers(tree, word)):
        return True
    calls = (each for each in ast.walk(tree) if isinstance(each, ast.Call))
    named = (each for each in calls if dotted_name(each.func).rpartition(".")[2] in _BY_NAME)
    return any(isinstance(given, ast.Constant) and given.value == word for each in named for given in each.args)


def lines_setting_attribute(tree: ast.AST, word: str) -> list[int]:
    """Return the lines that set an attribute on a possible optimizer."""
    return [each.lineno for each in _attributes_of_optimizers(tree, word) if isinstance(each.ctx, ast.Store)]


def _attributes_of_optimizers(tree: ast.AST, word: str) -> list[ast.Attribute]:
    attributes = [each for each in ast.walk(tree) if isinstance(each, ast.Attribute)]
    others = {dotted_name(each.value) for each in attributes if each.attr not in _OPTIMIZER_ATTRIBUTES} - {""} | {
        "self"
    }
    return [each for each in attributes if each.attr == word and dotted_name(each.value) not in others]


def sets_in_groups(tree: ast.AST, word: str, but: frozenset[int]) -> bool:
    """Return True if a source sets an item: ``group["lr"] = 0.1``, ``group.update(lr=0.1)``.

    Args:
        tree: the syntax tree.
        word: the key.
        but: ids of assignment targets to ignore.
    """
    for each in ast.walk(tree):
        if isinstance(each, ast.Subscript) and isinstance(each.ctx, ast.Store) and id(each) not in but:
            given: list[ast.expr | None] = [each.slice]
        elif isinstance(each, ast.Call) and getattr(each.func, "attr", "") == "update":
            given = [key for one in each.args if isinstance(one, ast.Dict) for key in one.keys]
            if any(one.arg == word for one in each.keywords):
                return True
        else:
            continue
        if any(isinstance(key, ast.Constant) and key.value == word for key in given):
            return True
    return False
