"""What a thing of unknown origin is, as its use tells: something with `zero_grad` and `step` is an optimizer.

Names say nothing: `model` may be anything. What is done with it does.
"""

from __future__ import annotations

import ast
import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Set
from typing import Any, Final

from trueloop.analysis.abstract_value import ValueKind
from trueloop.core.source_text import dotted_name

CALLED: Final = "()"
_OF_MODULES: Final = frozenset((
    "parameters", "named_parameters", "train", "eval", "zero_grad", "modules", "named_modules", "children",
    "requires_grad_",
))  # fmt: skip
_OF_TENSORS: Final = frozenset(("backward", "item", "detach", "argmax", "size", "view"))


_TRAINING: Final = re.compile(
    "back|step|grad|cast|^train|^eval|state|load|save|Load|seed|clip|scal|Scal|loss|Loss|entropy|dropout|forward|checkpoint"
    "|softmax|sigmoid|optim|Optim|Sequential|Linear|Conv|compile|export|trace",
)
"""In the names of methods and functions that some rule knows of."""


_NODES: Final = (ast.Call, ast.FunctionDef, ast.AsyncFunctionDef)


class Uses:
    """The calls of a file, by where they stand: the tree is gone through once.

    Args:
        tree: of the file.
    """

    def __init__(self, tree: ast.AST) -> None:
        nodes = [node for node in walk(tree) if isinstance(node, _NODES)]
        self.calls = sorted((node for node in nodes if isinstance(node, ast.Call)), key=lambda node: node.lineno)
        """In the order of their lines."""
        self._lines = [node.lineno for node in self.calls]
        self._known: dict[int, dict[str, set[str]]] = {}
        self._training: set[Any] | None = None
        self._defined: dict[str, list[Any]] = defaultdict(list)
        for node in nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                self._defined[node.name].append(node)

    def of(self, path: str, within: Any) -> Set[str]:
        """Return the methods called of a name or attribute within a function or class: "self.net" -> {"()", "eval"}."""
        table = self._known.get(id(within))
        if table is None:
            table = self._known[id(within)] = self._table(within)
        return table.get(path, frozenset())

    def trains(self, function: Any) -> bool:
        """True for a function in which something is called that has to do with training: others need no run.

        What the functions of the file do that it calls counts, too, by their names.
        """
        if self._training is None:
            self._training = self._all_that_train()
        return function in self._training

    def _all_that_train(self) -> set[Any]:
        names = {each: set(self._names(each)) for several in self._defined.values() for each in several}
        found = {each for each, called in names.items() if any(map(_TRAINING.search, called))}
        while True:
            by_name = {each.name for each in found}
            more = {each for each, called in names.items() if each not in found and called & by_name}
            if not more:
                return found
            found |= more

    def _names(self, function: Any) -> Iterator[str]:
        start = bisect_left(self._lines, function.lineno)
        end = bisect_right(self._lines, function.end_lineno)
        for node in self.calls[start:end]:
            yield getattr(node.func, "attr", getattr(node.func, "id", ""))

    def _table(self, within: Any) -> dict[str, set[str]]:
        found: dict[str, set[str]] = defaultdict(set)
        first, last = (0, None) if isinstance(within, ast.Module) else (within.lineno, within.end_lineno)
        start = bisect_left(self._lines, first)
        end = len(self._lines) if last is None else bisect_right(self._lines, last)
        for node in self.calls[start:end]:
            if path := dotted_name(node.func):
                found[path].add(CALLED)
            if isinstance(node.func, ast.Attribute) and (path := dotted_name(node.func.value)):
                found[path].add(node.func.attr)
        return found


def walk(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield every node of a tree, in no order; twice as fast as ``ast.walk``."""
    stack = [tree]
    while stack:
        node = stack.pop()
        yield node
        for value in vars(node).values():
            if isinstance(value, list):
                stack += [each for each in value if isinstance(each, ast.AST)]  # pyright: ignore[reportUnknownVariableType]
            elif isinstance(value, ast.AST):
                stack.append(value)


def kind_by_use(methods: Set[str]) -> ValueKind | None:
    """Return what has these methods; None where many a thing has."""
    if methods & {"backward", "fit"}:
        return None
    if {"scale", "update"} <= methods and methods & {"step", "unscale_"}:
        return ValueKind.SCALER
    if {"zero_grad", "step"} <= methods and CALLED not in methods:
        return ValueKind.OPTIMIZER
    if CALLED in methods and methods & _OF_MODULES and not methods & (_OF_TENSORS | {"step"}):
        return ValueKind.MODEL
    return None
