"""The names of functions and modules, with their values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trueloop.analysis.abstract_value import AbstractValue, join_values

if TYPE_CHECKING:
    from trueloop.analysis.interpreter.imports import Imports
    from trueloop.analysis.project import Module


class Scope:
    """The names of a function or module.

    Args:
        parent: scope of the enclosing function or module, which is searched for names that this scope lacks.
    """

    __slots__ = ("module_scope", "names", "outer", "parent")

    def __init__(self, parent: Scope) -> None:
        self.names: dict[str, AbstractValue] = {}
        self.parent: Scope | None = parent
        self.module_scope: ModuleScope = parent.module_scope
        self.outer: dict[str, Scope] = {}
        """Name declared global or nonlocal -> the scope that contains it."""

    def get(self, name: str) -> AbstractValue | None:
        """Return the value of a variable, for which a file may be interpreted first; None if nothing defines it."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.parent
        return self.module_scope.imports.define(self.module_scope, name)

    def assign(self, name: str, value: AbstractValue) -> None:
        """Assign a value to a name."""
        self.outer.get(name, self).names[name] = value

    def declare(self, name: str, *, is_global: bool) -> None:
        """Declare a name global or nonlocal."""
        scope = self.parent
        while scope is not None and scope.parent is not None and (is_global or name not in scope.names):
            scope = scope.parent
        if scope is not None:
            self.outer[name] = scope

    def copy_names(self) -> dict[str, AbstractValue]:
        """Return a copy of the names."""
        return dict(self.names)

    def merge(self, other: dict[str, AbstractValue]) -> None:
        """Merge the variables of another branch, so that each of them may have either value."""
        for name, value in other.items():
            own = self.names.get(name)
            if own is not value:
                self.names[name] = value if own is None else join_values(own, value)


class ModuleScope(Scope):
    """The names of a file. Those of an imported file get their values when they are used for the first time."""

    __slots__ = ("has_run", "imports", "is_complete", "module")

    def __init__(self, module: Module, imports: Imports) -> None:
        self.names, self.outer, self.parent, self.module_scope = {}, {}, None, self
        self.module, self.imports = module, imports
        self.is_complete = False
        """Whether the interpretation of all statements of the file has begun."""
        self.has_run = False
        """Whether any function of the file was interpreted, or the whole file."""
