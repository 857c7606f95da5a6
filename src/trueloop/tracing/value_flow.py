"""Follows values by the names of variables within one function, where no tensor connects them: numbers and arrays."""

import ast
from collections.abc import Iterable, Iterator
from functools import lru_cache
from types import CodeType
from typing import Final, NamedTuple

from trueloop.core.source_text import read_source

_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_BLOCKS: Final = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try)
_STORING_METHODS: Final = ("add", "append", "appendleft", "extend", "insert", "update")


class Span(NamedTuple):
    """Lines and columns of an expression, columns in bytes."""

    line: int
    end_line: int
    column: int
    end_column: int

    @property
    def start(self) -> tuple[int, int]:
        """Line and column of the first character."""
        return self.line, self.column

    @property
    def end(self) -> tuple[int, int]:
        """Line and column after the last character."""
        return self.end_line, self.end_column

    def contains(self, other: "Span") -> bool:
        """Return True if another expression is a part of this one."""
        return self.start <= other.start and other.end <= self.end


class _Statement(NamedTuple):
    """A statement of a function, or the first line of a block."""

    span: Span
    used: frozenset[str]
    assigned: frozenset[str]
    node: ast.stmt


@lru_cache(maxsize=1024)
def span_of(code: CodeType, instruction: int) -> Span | None:
    """Return the expression that an instruction belongs to; None if unknown."""
    line, end_line, column, end_column = list(code.co_positions())[instruction // 2]
    if line is None or end_line is None or column is None or end_column is None:
        return None
    return Span(line, end_line, column, end_column)


@lru_cache(maxsize=1024)
def depends_on(code: CodeType, use: Span, origin: Span) -> bool:
    """Return True if an expression may use a value that another expression of the same function has computed.

    Assignments are followed by name, in any order, and so are values that are added to a list: ``values.append(x)``.

    Args:
        code: the function, or the top level of a file.
        use: the expression that uses the value.
        origin: the expression that computes the value.
    """
    statements = [_read(each) for each in _statements(code)]
    user, source = _enclosing(statements, use), _enclosing(statements, origin)
    if user is None or source is None:
        return False
    if use.contains(origin):
        return True
    dependent, count = set(source.assigned), -1
    while len(dependent) > count:
        count = len(dependent)
        for each in statements:
            if not dependent.isdisjoint(each.used):
                dependent |= each.assigned
    return not dependent.isdisjoint(_names(user.node, ast.Load, use))


def _read(statement: ast.stmt) -> _Statement:
    header = _header(statement) if isinstance(statement, _BLOCKS) else []
    end = max(header, key=lambda each: (each.end_lineno or 0, each.end_col_offset or 0), default=statement)
    span = Span(statement.lineno, end.end_lineno or 0, statement.col_offset, end.end_col_offset or 0)
    used = frozenset(_names(statement, ast.Load))
    return _Statement(span, used, frozenset(_assigned_names(statement)), statement)


def _enclosing(statements: Iterable[_Statement], span: Span) -> _Statement | None:
    return next((each for each in statements if each.span.contains(span)), None)


def _statements(code: CodeType) -> Iterable[ast.stmt]:
    """Return the statements of a function, also those in its blocks, but not those of functions within it."""
    try:
        tree = _parse(code.co_filename)
    except (SyntaxError, ValueError, RecursionError):
        return ()
    if code.co_name == "<module>":
        return list(_without_functions(tree.body))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == code.co_name:
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            if first == code.co_firstlineno:
                return list(_without_functions(node.body))
    return ()


@lru_cache(maxsize=64)
def _parse(file: str) -> ast.Module:
    return ast.parse(read_source(file))


def _without_functions(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        yield statement
        for field in ("body", "orelse", "finalbody"):
            yield from _without_functions(getattr(statement, field, ()))
        for handler in getattr(statement, "handlers", ()):
            yield from _without_functions(handler.body)


def _header(statement: ast.stmt) -> list[ast.expr]:
    return [
        expression
        for name, value in ast.iter_fields(statement)
        if name in ("test", "target", "iter", "items")
        for each in (value if isinstance(value, list) else [value])
        for expression in ([each.context_expr] if isinstance(each, ast.withitem) else [each])
    ]


def _names(statement: ast.stmt, context: type[ast.expr_context], within: Span | None = None) -> Iterator[str]:
    """Yield the names of variables and attributes, such as "self.loss", that a statement reads or assigns."""
    for root in _header(statement) if isinstance(statement, _BLOCKS) else [statement]:
        for node in ast.walk(root):
            if not isinstance(node, ast.Name | ast.Attribute) or not isinstance(node.ctx, context):
                continue
            span = Span(node.lineno, node.end_lineno or 0, node.col_offset, node.end_col_offset or 0)
            if within is None or within.contains(span):
                yield ast.unparse(node)


def _assigned_names(statement: ast.stmt) -> Iterator[str]:
    yield from _names(statement, ast.Store)
    for node in ast.walk(statement) if not isinstance(statement, _BLOCKS) else ():
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            yield ast.unparse(node.value)
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        called = statement.value.func
        if isinstance(called, ast.Attribute) and called.attr in _STORING_METHODS:
            yield ast.unparse(called.value)
