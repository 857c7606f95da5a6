"""Records operations, each with the loops, conditions, calls and contexts around it."""

import ast
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final

from trueloop.analysis.abstract_value import AbstractValue
from trueloop.analysis.operations import Branch, Loop, Op, OpKind

MAX_OPERATIONS: Final = 20_000
MAX_STATEMENTS: Final = 60_000
MAX_STATEMENTS_WITH_IMPORTS: Final = 2_000  # after so many statements, no more imported files are interpreted
MAX_CALL_DEPTH: Final = 8  # levels of nested function calls


class LimitExceeded(Exception):
    """The file is too long or too complex to interpret."""


class Recording:
    """The operations recorded so far, and the context of the next operation."""

    def __init__(self) -> None:
        self.operations: list[Op] = []
        self.names: dict[int, str] = {}
        """Node id of an expression -> its qualified name."""
        self.loops: tuple[Loop, ...] = ()
        self.branches: tuple[Branch, ...] = ()
        self.calls: tuple[Any, ...] = ()
        self.functions: tuple[Any, ...] = ()
        """Definitions of the running functions, innermost last."""
        self.grad: bool | None = True
        self.autocast: str | None = None
        self.autocasts: tuple[tuple[AbstractValue, int], ...] = ()
        self.contexts: tuple[str, ...] = ()
        self.statement: ast.stmt | None = None
        self.entry_point = 0
        self.statements = 0

    def add(self, kind: OpKind, node: ast.AST, subject: AbstractValue, *inputs: AbstractValue, **fields: Any) -> Op:
        """Record one operation.

        Raises:
            LimitExceeded: there are too many operations.
        """
        if len(self.operations) >= MAX_OPERATIONS:
            raise LimitExceeded
        operation = Op(
            kind=kind,
            node=node,
            index=len(self.operations),
            entry_point=self.entry_point,
            subject=subject,
            inputs=inputs,
            loops=self.loops,
            branches=self.branches,
            calls=self.calls,
            function=self.functions[-1] if self.functions else None,
            functions=self.functions,
            statement=self.statement,
            grad=self.grad,
            autocast=self.autocast,
            autocasts=self.autocasts,
            contexts=self.contexts,
            **fields,
        )
        self.operations.append(operation)
        return operation

    def start_statement(self, statement: ast.stmt) -> None:
        """Set the statement that is interpreted next.

        Raises:
            LimitExceeded: there are too many statements.
        """
        self.statements += 1
        if self.statements > MAX_STATEMENTS:
            raise LimitExceeded
        self.statement = statement

    @contextmanager
    def loop(self, node: ast.AST, iterable: AbstractValue | None) -> Generator[None]:
        """Record a loop around the operations within a ``with`` block."""
        before, self.loops = self.loops, (*self.loops, Loop(node, iterable, len(self.branches), self.calls))
        try:
            yield
        finally:
            self.loops = before

    @contextmanager
    def branch(self, *branches: Branch) -> Generator[None]:
        """Record conditions around the operations within a ``with`` block."""
        before, self.branches = self.branches, (*self.branches, *branches)
        try:
            yield
        finally:
            self.branches = before

    @contextmanager
    def call(self, node: ast.AST, function: Any) -> Generator[None]:
        """Record a function call around the operations within a ``with`` block."""
        before = self.calls, self.functions, self.statement
        self.calls, self.functions = (*self.calls, node), (*self.functions, function)
        try:
            yield
        finally:
            self.calls, self.functions, self.statement = before

    def frame(self) -> tuple[Any, ...]:
        """Return the loops, conditions and calls around the running statement, for `at`."""
        return self.loops, self.branches, self.calls, self.functions, self.statement

    @contextmanager
    def at(self, frame: tuple[Any, ...]) -> Generator[None]:
        """Record the operations within a ``with`` block as if the statement of a frame ran them."""
        before = self.frame()
        self.loops, self.branches, self.calls, self.functions, self.statement = frame
        try:
            yield
        finally:
            self.loops, self.branches, self.calls, self.functions, self.statement = before

    @contextmanager
    def module_level(self) -> Generator[None]:
        """Record the operations within a ``with`` block without the loops, conditions and calls around it."""
        with self.at(((), (), (), (), self.statement)), self.restored_modes():
            self.grad, self.autocast, self.autocasts, self.contexts = True, None, (), ()
            yield

    @contextmanager
    def restored_modes(self) -> Generator[None]:
        """Restore the gradient mode, autocasts and contexts after a ``with`` block."""
        before = self.grad, self.autocast, self.autocasts, self.contexts
        try:
            yield
        finally:
            self.grad, self.autocast, self.autocasts, self.contexts = before
