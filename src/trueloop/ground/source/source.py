"""One file, as a rule sees it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from trueloop.ground.findings import Severity
from trueloop.ground.source.operations import Act, Loop, Operation
from trueloop.ground.source.text import Fix, Text
from trueloop.ground.source.things import Kind, Thing


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """What a rule has found."""

    message: str
    """One sentence: what the text does, with its own names."""
    node: Any
    """The operation at fault; reported at its first line."""
    related: tuple[tuple[Any, str], ...] = ()
    """Other nodes that matter, each with what it does: (node, "cleared here")."""
    fix: Fix | None = None
    severity: Severity | None = None
    """Where this case is less grave than the failure is in general; None = as it is."""


class Source:
    """A file that was read: its text, its tree, and what it does.

    Args:
        text: of the file.
        tree: of the whole file.
        operations: in the order of the program.
        names: expressions -> the qualified names of what they stand for: "torch.nn.functional.dropout".
        notebook: the text is that of the cells of a notebook, one after the other.
    """

    def __init__(
        self,
        text: Text,
        tree: ast.Module,
        operations: Iterable[Operation],
        names: dict[int, str],
        *,
        notebook: bool = False,
    ) -> None:
        self.text, self.tree, self.notebook = text, tree, notebook
        self.operations = tuple(operations)
        self._names = names

    def name(self, node: ast.expr) -> str:
        """Return the qualified name an expression stands for; "" where the text does not tell."""
        return self._names.get(id(node), "")

    def calls(self, *names: str) -> Iterator[ast.Call]:
        """Yield every call of functions with these qualified names, also where nothing leads to it."""
        for node in self.all_calls:
            if self.name(node.func) in names:
                yield node

    @cached_property
    def all_calls(self) -> list[ast.Call]:
        """Every call in the text."""
        return [node for node in ast.walk(self.tree) if isinstance(node, ast.Call)]

    def acts(self, *acts: Act) -> list[Operation]:
        """Return the operations of these kinds, in order."""
        return [each for each in self.operations if each.act in acts]

    def within(self, loop: Loop, *acts: Act, root: int | None = None) -> list[Operation]:
        """Return the operations in a loop, those of inner loops and of functions called from it among them."""
        return [
            each
            for each in self.operations
            if (not acts or each.act in acts) and (root is None or each.root == root) and each.within(loop)
        ]

    @staticmethod
    def handed_out(thing: Thing, operations: Iterable[Operation]) -> bool:
        """True where code that this file does not show got hold of a thing, or of the models whose parameters it has.

        Args:
            thing: a model, optimizer, scaler ...
            operations: where to look.
        """
        return any(
            given.may_be(thing) or given.covers(thing)
            for operation in operations
            if operation.act is Act.ESCAPED
            for given in operation.things
        )

    @staticmethod
    def clears(operation: Operation, thing: Thing) -> bool:
        """True where an operation clears or changes gradients by hand, and those of a thing may be among them."""
        if operation.act not in (Act.CLEARED, Act.GRADIENTS):
            return False
        known = operation.subject.models() and thing.models()
        return not known or operation.subject.covers(thing)

    @staticmethod
    def reaches(backward: Operation, thing: Thing) -> bool:
        """True where a backward's root was computed by a model whose parameters a thing has, or may have."""
        models = [each for each in backward.subject.lineage() if each.kind is Kind.MODEL]
        return bool(models) and (not thing.models() or any(each.covers(thing) or thing.covers(each) for each in models))
