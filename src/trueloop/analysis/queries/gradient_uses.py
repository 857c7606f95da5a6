"""Finds code that uses gradients in another way than by stepping an optimizer."""

import ast
from collections.abc import Mapping
from typing import Any, Final

from trueloop.core.source_text import encloses, walk

_GRADIENTS: Final = frozenset(("grad", "grad_sample", "grad_batch", "main_grad"))
"""Attributes in which PyTorch and other libraries store gradients."""
_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)
_CLIPPING: Final = frozenset(("clip_grad_norm_", "clip_grad_norm", "get_total_norm"))
_HOOKS: Final = ("register_hook", "register_full_backward", "register_post_acc", "register_backward", "register_multi")


def uses_gradients(trees: Mapping[str, ast.Module]) -> bool:
    """Return True if source files may use gradients in another way than by stepping an optimizer."""
    for tree in trees.values():
        for node in walk(tree):
            if isinstance(node, ast.Attribute) and (node.attr in _GRADIENTS or node.attr.startswith(_HOOKS)):
                return True
            if isinstance(node, ast.Constant) and node.value == "grad":
                return True
            if any(_uses_norm(tree, node, each) for each in ast.iter_child_nodes(node)):
                return True
    return False


def _uses_norm(tree: ast.Module, parent: Any, node: ast.AST) -> bool:
    """Return True for a clipping call whose result is used, unless it is stored in a variable that is never read."""
    if not isinstance(node, ast.Call) or isinstance(parent, ast.Expr):
        return False
    if getattr(node.func, "attr", getattr(node.func, "id", "")) not in _CLIPPING:
        return False
    target = parent.targets[0] if isinstance(parent, ast.Assign) else None
    enclosing = [each for each in walk(tree) if isinstance(each, _FUNCTIONS) and encloses(each, parent)]
    scope = max(enclosing, key=lambda each: each.lineno) if enclosing else tree
    return not isinstance(target, ast.Name) or _reads(scope, target.id)


def _reads(scope: ast.AST, name: str) -> bool:
    """Return True if a function or module reads a variable, also in inner functions that do not assign this name."""
    for each in ast.iter_child_nodes(scope):
        if isinstance(each, ast.Name) and each.id == name and isinstance(each.ctx, ast.Load):
            return True
        own = isinstance(each, _FUNCTIONS) and any(
            (isinstance(inner, ast.Name) and inner.id == name and isinstance(inner.ctx, ast.Store))
            or (isinstance(inner, ast.arg) and inner.arg == name)
            for inner in walk(each)
        )
        if not own and _reads(each, name):
            return True
    return False
