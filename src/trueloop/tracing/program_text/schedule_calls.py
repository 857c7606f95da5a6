"""Whether the text of a program can advance a schedule, or sets learning rates by hand."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any, Final

from trueloop.core.source_text import dotted_name
from trueloop.tracing.program_text.optimizer_settings import sets_in_groups

STEP: Final = "step"
_OTHERS: Final = frozenset((
    "zero_grad", "param_groups", "add_param_group", "scale", "unscale_", "get_scale", "reset",
))  # fmt: skip
"""Attributes of optimizers, scalers and environments, which are stepped too; no schedule of torch's has any."""
_BY_NAME: Final = frozenset(("getattr", "methodcaller", "attrgetter"))
_SCOPES: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def may_step_schedule(tree: ast.Module) -> bool:
    """Return True where something in a text may be the ``step()`` of a schedule.

    It is none of what is surely something else: that has attributes of an optimizer in the same function or class, or
    is made by ``torch.optim`` there.
    """
    return any(not _is_other(scopes, owner) for scopes, owner in _stepped(tree, ())) or _by_name(tree)


def sets_rates(tree: ast.AST) -> bool:
    """Return True where a text sets the rate of a group itself."""
    return sets_in_groups(tree, "lr", frozenset())


def _stepped(node: ast.AST, scopes: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], ast.expr]]:
    """Yield what a ``step`` is asked of, with the module, classes and functions around it."""
    if isinstance(node, (ast.Module, ast.ClassDef, *_SCOPES)):
        scopes = (*scopes, node)
    if isinstance(node, ast.Attribute) and node.attr == STEP and isinstance(node.ctx, ast.Load):
        yield scopes, node.value
    for each in ast.iter_child_nodes(node):
        yield from _stepped(each, scopes)


def _is_other(scopes: tuple[Any, ...], owner: ast.expr) -> bool:
    path = dotted_name(owner)
    if not path:
        return isinstance(owner, ast.Call) and isinstance(owner.func, ast.Name) and owner.func.id == "super"
    if path == "self":
        return True  # of a class of the program's own
    of_class = [each for each in scopes if isinstance(each, ast.ClassDef)]
    scope = of_class[-1] if path.startswith("self.") and of_class else scopes[-1]
    return any(_tells(each, path) for each in ast.walk(scope))


def _tells(node: ast.AST, path: str) -> bool:
    """Return True where a node shows that a path stands for no schedule."""
    if isinstance(node, ast.Attribute):
        return node.attr in _OTHERS and dotted_name(node.value) == path
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
        return False
    made = dotted_name(node.value.func).split(".")
    return "optim" in made[:-1] and "lr_scheduler" not in made and path in map(dotted_name, node.targets)


def _by_name(tree: ast.AST) -> bool:
    """Return True where an attribute is looked up by its name, as a text: ``getattr(schedule, "step")()``."""
    return any(
        isinstance(each, ast.Constant) and STEP in str(each.value).split(".")
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and dotted_name(node.func).rpartition(".")[2] in _BY_NAME
        for each in node.args
    )
