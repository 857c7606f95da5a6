"""Infers the kind of an unknown value from the methods that are called on it: `zero_grad` and `step` of an optimizer.

The name of a variable is used only if the value is called and nothing else, since `model` may be anything.
"""

import ast
import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Set
from typing import Any, Final

from trueloop.analysis.abstract_value import ValueKind
from trueloop.core.source_text import dotted_name

CALL: Final = "()"
_MODULE_METHODS: Final = frozenset((
    "parameters", "named_parameters", "train", "eval", "zero_grad", "modules", "named_modules", "children",
    "requires_grad_",
))  # fmt: skip
_CALLED_ONLY: Final = frozenset((CALL, "to", "cuda", "cpu", "state_dict", "load_state_dict", "half", "float"))
_MODEL_NAMES: Final = re.compile(
    r"^(?!_*(make|build|create|get|init|load|new|define|setup)_)(.*_)?(model|net|network|encoder|decoder|generator|discriminator|backbone|classifier|policy_net|critic|actor)\d*$"
    r"|^net[GD]$",
    re.IGNORECASE,
)
_TENSOR_METHODS: Final = frozenset(("backward", "item", "detach", "argmax", "size", "view"))


_TRAINING: Final = re.compile(
    "back|step|grad|cast|^train|^eval|state|load|save|Load|seed|clip|scal|Scal|loss|Loss|entropy|dropout|forward|checkpoint"
    "|softmax|sigmoid|optim|Optim|Sequential|Linear|Conv|compile|export|trace"
)
"""Parts of the names of methods and functions that lint rules know."""


_RUNNING: Final = re.compile("backward|step|grad|train|eval|valid|fit|epoch|DataLoader|optim|Optim")
"""Parts of the names of methods and functions that train or evaluate a model."""

_NODES: Final = (ast.Call, ast.FunctionDef, ast.AsyncFunctionDef)


class CallIndex:
    """The calls of a file, indexed by line.

    Args:
        tree: all nodes of the syntax tree of the file.
    """

    def __init__(self, tree: Iterable[ast.AST]) -> None:
        nodes = [node for node in tree if isinstance(node, _NODES)]
        self.calls = sorted((node for node in nodes if isinstance(node, ast.Call)), key=lambda node: node.lineno)
        """All calls, by line."""
        self._lines = [node.lineno for node in self.calls]
        self._tables: dict[int, dict[str, set[str]]] = {}
        self._callers: dict[re.Pattern[str], set[Any]] = {}
        self._defined: dict[str, list[Any]] = defaultdict(list)
        for node in nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                self._defined[node.name].append(node)

    def methods_of(self, path: str, scope: Any) -> Set[str]:
        """Return the methods that a function or class calls on a name or attribute: {"()", "eval"} for "self.net"."""
        table = self._tables.get(id(scope))
        if table is None:
            table = self._tables[id(scope)] = self._table(scope)
        return table.get(path, frozenset())

    def may_train(self, function: Any, imported: Set[str] = frozenset()) -> bool:
        """Return True for a function that calls something related to training; only these are interpreted.

        It may also call another function of the file, found by name, that does so.

        Args:
            function: definition of the function.
            imported: names of functions of other files that may do so.
        """
        return function in self._functions_calling(_TRAINING, imported)

    def may_run_training(self, function: Any, imported: Set[str]) -> bool:
        """Return True for a function that trains or evaluates a model, by the names of what it calls."""
        return function in self._functions_calling(_RUNNING, imported)

    def _functions_calling(self, pattern: re.Pattern[str], imported: Set[str]) -> set[Any]:
        """Return the functions that call a name that matches a pattern, directly or by other functions of the file."""
        if pattern in self._callers:
            return self._callers[pattern]
        names = {each: set(self._called_names(each)) for several in self._defined.values() for each in several}
        found = self._callers[pattern] = {
            each
            for each, called in names.items()
            if any(map(pattern.search, called))
            or (each.name not in ("forward", "__init__") and not imported.isdisjoint(called))
        }
        while True:
            by_name = {each.name for each in found}
            more = {each for each, called in names.items() if each not in found and called & by_name}
            if not more:
                return found
            found |= more

    def _called_names(self, function: Any) -> Iterator[str]:
        start = bisect_left(self._lines, function.lineno)
        end = bisect_right(self._lines, function.end_lineno)
        for node in self.calls[start:end]:
            yield getattr(node.func, "attr", getattr(node.func, "id", ""))

    def _table(self, scope: Any) -> dict[str, set[str]]:
        found: dict[str, set[str]] = defaultdict(set)
        first, last = (0, None) if isinstance(scope, ast.Module) else (scope.lineno, scope.end_lineno)
        start = bisect_left(self._lines, first)
        end = len(self._lines) if last is None else bisect_right(self._lines, last)
        for node in self.calls[start:end]:
            if path := dotted_name(node.func):
                found[path].add(CALL)
            if isinstance(node.func, ast.Attribute) and (path := dotted_name(node.func.value)):
                found[path].add(node.func.attr)
        return found


def kind_by_use(methods: Set[str], name: str = "") -> ValueKind | None:
    """Return the kind of value on which these methods are called; None if ambiguous.

    A value that is only called is a model if its name says so.

    Args:
        methods: names of the methods; "()" for a call of the value itself.
        name: name or last attribute that has the value.
    """
    if CALL in methods and methods <= _CALLED_ONLY and _MODEL_NAMES.search(name):
        return ValueKind.MODEL
    if methods & {"backward", "fit"}:
        return None
    if {"scale", "update"} <= methods and methods & {"step", "unscale_"}:
        return ValueKind.SCALER
    if {"zero_grad", "step"} <= methods and CALL not in methods:
        return ValueKind.OPTIMIZER
    if CALL in methods and methods & _MODULE_METHODS and not methods & (_TENSOR_METHODS | {"step"}):
        return ValueKind.MODEL
    return None
