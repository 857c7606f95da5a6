"""What a thing of unknown origin is, as its use tells: something with `zero_grad` and `step` is an optimizer.

Names say nothing: `model` may be anything. What is done with it does.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Mapping
from typing import Final

from trueloop.ground.source.things import Kind

CALLED: Final = "()"
_OF_MODULES: Final = frozenset((
    "parameters", "named_parameters", "train", "eval", "zero_grad", "modules", "named_modules", "children",
    "requires_grad_",
))  # fmt: skip
_OF_TENSORS: Final = frozenset(("backward", "item", "detach", "argmax", "size", "view"))

Uses = Mapping[str, frozenset[str]]


def uses(node: ast.AST) -> Uses:
    """Return the methods called of every name and attribute within a function or class: "self.net" -> {"()", "eval"}.

    Args:
        node: of the syntax tree.
    """
    found: dict[str, set[str]] = defaultdict(set)
    for each in ast.walk(node):
        if not isinstance(each, ast.Call):
            continue
        if path := dotted(each.func):
            found[path].add(CALLED)
        if isinstance(each.func, ast.Attribute) and (path := dotted(each.func.value)):
            found[path].add(each.func.attr)
    return {path: frozenset(methods) for path, methods in found.items()}


def kind_by_use(methods: frozenset[str]) -> Kind | None:
    """Return what has these methods; None where many a thing has."""
    if methods & {"backward", "fit"}:
        return None
    if {"scale", "update"} <= methods and methods & {"step", "unscale_"}:
        return Kind.SCALER
    if {"zero_grad", "step"} <= methods and CALLED not in methods:
        return Kind.OPTIMIZER
    if CALLED in methods and methods & _OF_MODULES and not methods & (_OF_TENSORS | {"step"}):
        return Kind.MODEL
    return None


def dotted(node: ast.AST) -> str:
    """Return a path of names as it is written: "self.net"; "" for anything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join([node.id, *reversed(parts)])
