"""Scopes: the values of names at a point of the program."""

from __future__ import annotations

from trueloop.analysis.abstract_value import AbstractValue, join_values


class Scope:
    """The names of a function or module.

    Args:
        parent: scope of the enclosing function or module, searched for names that are missing here.
    """

    __slots__ = ("names", "outer", "parent")

    def __init__(self, parent: Scope | None = None) -> None:
        self.names: dict[str, AbstractValue] = {}
        self.parent = parent
        self.outer: dict[str, Scope] = {}
        """Names declared global or nonlocal -> the scope that holds them."""

    def get(self, name: str) -> AbstractValue | None:
        """Return the value of a name; None if it is not assigned."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.parent
        return None

    def assign(self, name: str, value: AbstractValue) -> None:
        """Assign a value to a name."""
        self.outer.get(name, self).names[name] = value

    def declare(self, name: str, *, everywhere: bool) -> None:
        """Declare a name global (``everywhere``) or nonlocal."""
        scope = self.parent
        while scope is not None and scope.parent is not None and (everywhere or name not in scope.names):
            scope = scope.parent
        if scope is not None:
            self.outer[name] = scope

    def copy_names(self) -> dict[str, AbstractValue]:
        """Return a copy of the names."""
        return dict(self.names)

    def merge(self, other: dict[str, AbstractValue]) -> None:
        """Merge the names of another branch: a name may have either value."""
        for name, value in other.items():
            mine = self.names.get(name)
            if mine is not value:
                self.names[name] = value if mine is None else join_values(mine, value)
