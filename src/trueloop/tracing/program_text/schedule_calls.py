"""Finds code that may step a learning-rate scheduler, or sets learning rates itself."""

import ast
from collections.abc import Iterator
from typing import Any, Final

from trueloop.core.source_text import dotted_name
from trueloop.tracing.program_text.optimizer_settings import sets_in_groups

STEP: Final = "step"
_NON_SCHEDULER_ATTRIBUTES: Final = frozenset((
    "zero_grad", "param_groups", "add_param_group", "scale", "unscale_", "get_scale", "reset",
))  # fmt: skip
"""Attributes that PyTorch schedulers lack; optimizers, scalers and environments, which have ``step`` too, have them."""
_LOOKUPS: Final = frozenset(("getattr", "methodcaller", "attrgetter"))
_SCOPES: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def may_step_schedule(tree: ast.Module) -> bool:
    """Return True if a source file may call ``step()`` of a scheduler.

    An object is excluded if the same function or class creates it by ``torch.optim``, or uses other attributes of it
    that schedulers lack.
    """
    return any(not _is_not_scheduler(scopes, owner) for scopes, owner in _step_accesses(tree, ())) or _is_looked_up(
        tree
    )


def sets_rates(tree: ast.AST) -> bool:
    """Return True if a source file sets the learning rate of a parameter group."""
    return sets_in_groups(tree, "lr", frozenset())


def _step_accesses(node: ast.AST, scopes: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], ast.expr]]:
    """Yield the enclosing scopes and the object of each access ``object.step``."""
    if isinstance(node, (ast.Module, ast.ClassDef, *_SCOPES)):
        scopes = (*scopes, node)
    if isinstance(node, ast.Attribute) and node.attr == STEP and isinstance(node.ctx, ast.Load):
        yield scopes, node.value
    for each in ast.iter_child_nodes(node):
        yield from _step_accesses(each, scopes)


def _is_not_scheduler(scopes: tuple[Any, ...], owner: ast.expr) -> bool:
    path = dotted_name(owner)
    if not path:
        return isinstance(owner, ast.Call) and isinstance(owner.func, ast.Name) and owner.func.id == "super"
    if path == "self":
        return True  # ``self.step`` is a method of a user class
    classes = [each for each in scopes if isinstance(each, ast.ClassDef)]
    scope = classes[-1] if path.startswith("self.") and classes else scopes[-1]
    return any(_excludes_scheduler(each, path) for each in ast.walk(scope))


def _excludes_scheduler(node: ast.AST, path: str) -> bool:
    """Return True if a node shows that an expression is not a scheduler."""
    if isinstance(node, ast.Attribute):
        return node.attr in _NON_SCHEDULER_ATTRIBUTES and dotted_name(node.value) == path
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
        return False
    called = dotted_name(node.value.func).split(".")
    return "optim" in called[:-1] and "lr_scheduler" not in called and path in map(dotted_name, node.targets)


def _is_looked_up(tree: ast.AST) -> bool:
    """Return True if ``step`` is looked up as a string: ``getattr(scheduler, "step")()``."""
    return any(
        isinstance(each, ast.Constant) and STEP in str(each.value).split(".")
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and dotted_name(node.func).rpartition(".")[2] in _LOOKUPS
        for each in node.args
    )
