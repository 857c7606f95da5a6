"""Statements that are moved to another place, with the comments on their lines."""

from __future__ import annotations

import ast

from trueloop.analysis.operations import Loop, Op
from trueloop.analysis.source_file import SourceFile
from trueloop.core.source_text import Fix


def move_after_fix(source: SourceFile, one: Op, other: Op, words: str, *, safe: bool = False) -> Fix | None:
    """Return the fix that moves the statement of one operation behind that of another.

    Where the other stands deeper, the first comes to stand on the same conditions; where it is in another loop or
    function, the first goes to the end of its own loop.

    Args:
        source: of both.
        one: all that its statement does.
        other: comes later.
        words: what the fix does.
        safe: nothing between them has to do with it.
    """
    statement, behind = one.statement, other.statement
    if statement is None or behind is None or not _is_sole_operation(one) or len(body := source.block(statement)) < 2:
        return None
    if one.function is other.function and one.loops == other.loops:
        edits = source.text.move_statement(statement, behind=behind)
    elif one.loops and body is getattr(one.loops[-1].node, "body", None) and not _may_exit_early(body):
        edits = source.text.move_statement(statement, behind=body[-1])
    else:
        return None
    return Fix(edits, safe=safe, description=words) if edits else None


def move_into_loop_fix(source: SourceFile, one: Op, other: Op, words: str) -> Fix | None:
    """Return the fix that moves a statement behind one in a loop beside it, in the same function; else None."""
    statement, behind = one.statement, other.statement
    if statement is None or behind is None or one.function is not other.function or not _is_sole_operation(one):
        return None
    edits = source.text.move_statement(statement, behind=behind) if len(source.block(statement)) > 1 else None
    return Fix(edits, safe=False, description=words) if edits else None


def move_out_of_loop_fix(source: SourceFile, one: Op, loop: Loop, words: str) -> Fix | None:
    """Return the fix that moves a statement in front of the loop whose body it is a part of; else None."""
    body = source.block(one.statement)
    if (
        one.statement is None
        or not _is_sole_operation(one)
        or body is not getattr(loop.node, "body", None)
        or len(body) < 2
    ):
        return None
    edits = source.text.move_statement(one.statement, before=loop.node)
    return Fix(edits, safe=False, description=words) if edits else None


def _is_sole_operation(one: Op) -> bool:
    """Return True where a statement does nothing else: a call, or one whose result gets one name."""
    statement = one.statement
    if isinstance(statement, ast.Assign):
        return (
            statement.value is one.node and isinstance(statement.targets[0], ast.Name) and len(statement.targets) == 1
        )
    return isinstance(statement, ast.Expr) and statement.value is one.node


def _may_exit_early(block: list[ast.stmt]) -> bool:
    """Return True where a turn of the loop may end before its last statement."""
    queue: list[ast.AST] = list(block)
    while queue:
        each = queue.pop()
        if isinstance(each, ast.Continue | ast.Break | ast.Return):
            return True
        if not isinstance(each, ast.FunctionDef | ast.Lambda):
            queue.extend(ast.iter_child_nodes(each))
    return False
