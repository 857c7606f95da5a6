"""Settings that torch's optimizers keep in their groups, and whether a text reads one from the optimizer itself."""

from __future__ import annotations

import ast
from typing import Final

from trueloop.core.source_text import dotted_name

SETTINGS: Final = frozenset(("lr", "weight_decay", "momentum", "betas", "eps", "nesterov", "amsgrad", "dampening"))
"""Of the groups of torch's own optimizers: those that people set."""
_OWN: Final = SETTINGS | {
    "step", "zero_grad", "param_groups", "add_param_group", "state", "state_dict", "load_state_dict", "defaults",
}  # fmt: skip
_BY_NAME: Final = frozenset(("getattr", "hasattr", "attrgetter"))


def is_read_from_optimizer(tree: ast.AST, word: str) -> bool:
    """Return True where a text may read an attribute of an optimizer, or ask for it by its name.

    What has other attributes than an optimizer's, as ``args`` with ``args.epochs``, is none, nor is ``self``.
    """
    if any(isinstance(each.ctx, ast.Load) for each in _of_optimizer(tree, word)):
        return True
    calls = (each for each in ast.walk(tree) if isinstance(each, ast.Call))
    named = (each for each in calls if dotted_name(each.func).rpartition(".")[2] in _BY_NAME)
    return any(isinstance(given, ast.Constant) and given.value == word for each in named for given in each.args)


def lines_setting_attribute(tree: ast.AST, word: str) -> list[int]:
    """Return the lines of a text on which an attribute of what may be an optimizer is set."""
    return [each.lineno for each in _of_optimizer(tree, word) if isinstance(each.ctx, ast.Store)]


def _of_optimizer(tree: ast.AST, word: str) -> list[ast.Attribute]:
    attributes = [each for each in ast.walk(tree) if isinstance(each, ast.Attribute)]
    others = {dotted_name(each.value) for each in attributes if each.attr not in _OWN} - {""} | {"self"}
    return [each for each in attributes if each.attr == word and dotted_name(each.value) not in others]


def sets_in_groups(tree: ast.AST, word: str, but: frozenset[int]) -> bool:
    """Return True where a text sets an item of that name: ``group["lr"] = 0.1``, ``group.update(lr=0.1)``.

    Args:
        tree: of the text.
        word: the key.
        but: the ids of targets that are known to be something else.
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
