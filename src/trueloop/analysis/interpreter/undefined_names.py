"""Gives the names that a fragment reads and does not define a value, by what the fragment does with them.

A complete program has no such names, unless a star import defines them; then none is known to be undefined.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Final

from trueloop.analysis.abstract_value import EXTERNAL, AbstractValue, ValueKind, unknown_value
from trueloop.analysis.interpreter.roles_by_use import CALL, kind_by_use
from trueloop.analysis.interpreter.scope import ModuleScope
from trueloop.analysis.project import Module

if TYPE_CHECKING:
    from trueloop.analysis.interpreter.interpreter import Interpreter

_LOADER: Final = re.compile(r"(^|_)(data_?|train_?|val_?|valid_?|validation_?|test_?)?(loader|dl)\d*$", re.IGNORECASE)


class UndefinedNames:
    """The values of the undefined names of one program, for an `Interpreter`."""

    def __init__(self, interpreter: Interpreter) -> None:
        self._interpreter = interpreter
        self._values: dict[tuple[str, str], AbstractValue] = {}
        """Path of a file and name -> its value."""

    def value(self, node: ast.Name) -> AbstractValue:
        """Return the value of a name without a value, always the same one if nothing in the file defines it."""
        scope = self._interpreter.scope.module_scope
        if node.id not in scope.module.undefined_names:
            return unknown_value(node)
        key = scope.module.path, node.id
        if key not in self._values:
            self._values[key] = self._create(node, scope)
        return self._values[key]

    def _create(self, node: ast.Name, scope: ModuleScope) -> AbstractValue:
        kind = _kind(node.id, scope.module)
        network = self._only_network(scope) if kind is ValueKind.MODEL else None
        if network is not None:
            with self._interpreter.recording.module_level():
                value = self._interpreter.calls.create_instance(network, network.node, [], {})
        else:
            value = AbstractValue(kind=kind, node=node, facts={EXTERNAL})
        value.loops = ()
        return value

    def _only_network(self, scope: ModuleScope) -> AbstractValue | None:
        """Return the only network that a file defines and does not create, if the file uses one undefined model."""
        module = scope.module
        if sum(_kind(each, module) is ValueKind.MODEL for each in module.undefined_names) != 1:
            return None
        read = {each.id for each in module.nodes_of(ast.Name)}
        classes = [each for each in scope.names.values() if each.kind is ValueKind.CLASS]
        networks = [each for each in classes if self._interpreter.calls.is_module(each)]
        unused = [each for each in networks if each.name not in read - _names_in_super(module)]
        return unused[0] if len(unused) == 1 and _has_forward(unused[0]) else None


def _kind(name: str, module: Module) -> ValueKind:
    methods = module.calls.methods_of(name, module.tree)
    kind = kind_by_use(methods, name)
    if kind is None and CALL not in methods and _LOADER.search(name):
        kind = ValueKind.LOADER
    return kind or ValueKind.UNKNOWN


def _names_in_super(module: Module) -> set[str]:
    """Return the classes whose names are read in ``super(Net, self)`` only."""
    reads = [each.id for each in module.nodes_of(ast.Name)]
    calls = [each for each in module.calls.calls if getattr(each.func, "id", "") == "super"]
    inside = [argument.id for each in calls for argument in each.args[:1] if isinstance(argument, ast.Name)]
    return {each for each in inside if reads.count(each) == inside.count(each)}


def _has_forward(network: AbstractValue) -> bool:
    return any(isinstance(each, ast.FunctionDef) and each.name == "forward" for each in network.node.body)
