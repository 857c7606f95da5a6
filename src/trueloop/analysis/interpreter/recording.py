"""Writes down operations, with what stands around each."""

from __future__ import annotations

import ast
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final

from trueloop.analysis.abstract_value import AbstractValue
from trueloop.analysis.operations import Branch, Loop, Op, OpKind

MAX_OPERATIONS: Final = 20_000
MAX_STATEMENTS: Final = 60_000
MAX_CALL_DEPTH: Final = 8  # calls of functions within one another


class LimitExceeded(Exception):
    """The file is too long or too tangled to be read to its end."""


class Recording:
    """The operations so far, and what stands around the next one."""

    def __init__(self) -> None:
        self.operations: list[Op] = []
        self.names: dict[int, str] = {}
        """Expressions, by id -> the qualified names of what they stand for."""
        self.loops: tuple[Loop, ...] = ()
        self.branches: tuple[Branch, ...] = ()
        self.calls: tuple[Any, ...] = ()
        self.functions: tuple[Any, ...] = ()
        """The definitions that are being run, innermost last."""
        self.grad: bool | None = True
        self.autocast: str | None = None
        self.autocasts: tuple[tuple[AbstractValue, int], ...] = ()
        self.contexts: tuple[str, ...] = ()
        self.statement: ast.stmt | None = None
        self.entry_point = 0
        self._statements = 0

    def add(self, act: OpKind, node: ast.AST, subject: AbstractValue, *inputs: AbstractValue, **more: Any) -> Op:
        """Write down one operation.

        Raises:
            Exhausted: there are too many.
        """
        if len(self.operations) >= MAX_OPERATIONS:
            raise LimitExceeded
        operation = Op(
            kind=act, node=node, index=len(self.operations), entry_point=self.entry_point, subject=subject, inputs=inputs,
            loops=self.loops, branches=self.branches, calls=self.calls,
            function=self.functions[-1] if self.functions else None, functions=self.functions,
            statement=self.statement,
            grad=self.grad, autocast=self.autocast, autocasts=self.autocasts, contexts=self.contexts, **more,
        )  # fmt: skip
        self.operations.append(operation)
        return operation

    def start_statement(self, statement: ast.stmt) -> None:
        """Take note of the statement that is run next.

        Raises:
            Exhausted: there are too many.
        """
        self._statements += 1
        if self._statements > MAX_STATEMENTS:
            raise LimitExceeded
        self.statement = statement

    @contextmanager
    def loop(self, node: ast.AST, over: AbstractValue | None) -> Generator[None]:
        """Stand in a loop."""
        before, self.loops = self.loops, (*self.loops, Loop(node, over, len(self.branches)))
        try:
            yield
        finally:
            self.loops = before

    @contextmanager
    def branch(self, *branches: Branch) -> Generator[None]:
        """Stand in arms of conditions."""
        before, self.branches = self.branches, (*self.branches, *branches)
        try:
            yield
        finally:
            self.branches = before

    @contextmanager
    def call(self, node: ast.AST, function: Any) -> Generator[None]:
        """Stand in a function."""
        before = self.calls, self.functions, self.statement
        self.calls, self.functions = (*self.calls, node), (*self.functions, function)
        try:
            yield
        finally:
            self.calls, self.functions, self.statement = before

    @contextmanager
    def restored_modes(self) -> Generator[None]:
        """Come back to the gradients, autocast and contexts as they are now."""
        before = self.grad, self.autocast, self.autocasts, self.contexts
        try:
            yield
        finally:
            self.grad, self.autocast, self.autocasts, self.contexts = before
