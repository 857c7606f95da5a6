"""What names stand for at a moment of the program."""

from __future__ import annotations

from trueloop.analysis.abstract_value import AbstractValue, join_values


class Scope:
    """The names of a function, within those of the function or module around it.

    Args:
        parent: where names are looked up that are not found here.
    """

    __slots__ = ("names", "outer", "parent")

    def __init__(self, parent: Scope | None = None) -> None:
        self.names: dict[str, AbstractValue] = {}
        self.parent = parent
        self.outer: dict[str, Scope] = {}
        """Names declared global or nonlocal -> where they live."""

    def get(self, name: str) -> AbstractValue | None:
        """Return what a name stands for; None where nobody has said."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.parent
        return None

    def assign(self, name: str, value: AbstractValue) -> None:
        """Let a name stand for something."""
        self.outer.get(name, self).names[name] = value

    def declare(self, name: str, *, everywhere: bool) -> None:
        """Take a name as one of the module's, or of the function around that has it."""
        scope = self.parent
        while scope is not None and scope.parent is not None and (everywhere or name not in scope.names):
            scope = scope.parent
        if scope is not None:
            self.outer[name] = scope

    def copy_names(self) -> dict[str, AbstractValue]:
        """Return the names as they are, to come back to."""
        return dict(self.names)

    def merge(self, other: dict[str, AbstractValue]) -> None:
        """Let every name stand for what it is here or there."""
        for name, value in other.items():
            mine = self.names.get(name)
            if mine is not value:
                self.names[name] = value if mine is None else join_values(mine, value)
