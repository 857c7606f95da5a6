"""Fixes that move a statement, with the comment on its line."""

import ast

from trueloop.analysis.operations import Loop, Op
from trueloop.analysis.source_file import SourceFile
from trueloop.core.source_text import Fix


def move_after_fix(source: SourceFile, one: Op, other: Op, description: str, *, safe: bool = False) -> Fix | None:
    """Return the fix that moves the statement of one operation after that of another; None if not possible.

    If the other one is nested deeper, the first gets the same conditions; if it is in another loop or function, the
    first moves to the end of its own loop.

    Args:
        source: the file.
        one: the operation to move; its statement does nothing else.
        other: a later operation.
        description: what the fix does.
        safe: whether the statements between them are unrelated.
    """
    statement, anchor = one.statement, other.statement
    if statement is None or anchor is None or not _is_sole_operation(one) or len(body := source.block(statement)) < 2:
        return None
    if one.function is other.function and one.loops == other.loops:
        edits = source.text.move_statement(statement, after=anchor)
    elif one.loops and body is getattr(one.loops[-1].node, "body", None) and not _may_exit_early(body):
        edits = source.text.move_statement(statement, after=body[-1])
    else:
        return None
    return Fix(edits, safe=safe, description=description) if edits else None


def move_into_loop_fix(source: SourceFile, one: Op, other: Op, description: str) -> Fix | None:
    """Return the fix that moves a statement after one in another loop of the same function; None if not possible."""
    statement, anchor = one.statement, other.statement
    if statement is None or anchor is None or one.function is not other.function or not _is_sole_operation(one):
        return None
    edits = source.text.move_statement(statement, after=anchor) if len(source.block(statement)) > 1 else None
    return Fix(edits, safe=False, description=description) if edits else None


def move_out_of_loop_fix(source: SourceFile, one: Op, loop: Loop, description: str) -> Fix | None:
    """Return the fix that moves a statement before the loop that directly contains it; None if not possible."""
    body = source.block(one.statement)
    if (
        one.statement is None
        or not _is_sole_operation(one)
        or body is not getattr(loop.node, "body", None)
        or len(body) < 2
    ):
        return None
    edits = source.text.move_statement(one.statement, before=loop.node)
    return Fix(edits, safe=False, description=description) if edits else None


def _is_sole_operation(one: Op) -> bool:
    """Return True if a statement consists of one operation: a call, or its assignment to one name."""
    statement = one.statement
    if isinstance(statement, ast.Assign):
        return (
            statement.value is one.node and isinstance(statement.targets[0], ast.Name) and len(statement.targets) == 1
        )
    return isinstance(statement, ast.Expr) and statement.value is one.node


def _may_exit_early(block: list[ast.stmt]) -> bool:
    """Return True if an iteration of a loop may end before its last statement."""
    queue: list[ast.AST] = list(block)
    while queue:
        each = queue.pop()
        if isinstance(each, ast.Continue | ast.Break | ast.Return):
            return True
        if not isinstance(each, ast.FunctionDef | ast.Lambda):
            queue.extend(ast.iter_child_nodes(each))
    return False
