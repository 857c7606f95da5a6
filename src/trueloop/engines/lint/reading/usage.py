"""What a thing of unknown origin is, as its use tells: something with `zero_grad` and `step` is an optimizer.

Names say nothing: `model` may be anything. What is done with it does.
"""

from __future__ import annotations

import ast
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Set
from typing import Any, Final

from trueloop.ground.source.things import Kind

CALLED: Final = "()"
_OF_MODULES: Final = frozenset((
    "parameters", "named_parameters", "train", "eval", "zero_grad", "modules", "named_modules", "children",
    "requires_grad_",
))  # fmt: skip
_OF_TENSORS: Final = frozenset(("backward", "item", "detach", "argmax", "size", "view"))


class Uses:
    """The calls of a file, by where they stand: the tree is gone through once.

    Args:
        tree: of the file.
    """

    def __init__(self, tree: ast.AST) -> None:
        self.calls = sorted(
            (node for node in ast.walk(tree) if isinstance(node, ast.Call)), key=lambda node: node.lineno
        )
        """In the order of their lines."""
        self._lines = [node.lineno for node in self.calls]
        self._known: dict[int, dict[str, set[str]]] = {}

    def of(self, path: str, within: Any) -> Set[str]:
        """Return the methods called of a name or attribute within a function or class: "self.net" -> {"()", "eval"}."""
        table = self._known.get(id(within))
        if table is None:
            table = self._known[id(within)] = self._table(within)
        return table.get(path, frozenset())

    def _table(self, within: Any) -> dict[str, set[str]]:
        found: dict[str, set[str]] = defaultdict(set)
        first, last = (0, None) if isinstance(within, ast.Module) else (within.lineno, within.end_lineno)
        start = bisect_left(self._lines, first)
        end = len(self._lines) if last is None else bisect_right(self._lines, last)
        for node in self.calls[start:end]:
            if path := dotted(node.func):
                found[path].add(CALLED)
            if isinstance(node.func, ast.Attribute) and (path := dotted(node.func.value)):
                found[path].add(node.func.attr)
        return found


def kind_by_use(methods: Set[str]) -> Kind | None:
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
