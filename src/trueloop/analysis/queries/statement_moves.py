"""Makes fixes that move a statement together with the comment on its line."""

import ast

from trueloop.analysis.operations import Loop, Op
from trueloop.analysis.source_file import SourceFile
from trueloop.core.source_text import Fix


def move_after_fix(source: SourceFile, moved: Op, later: Op, description: str, *, safe: bool = False) -> Fix | None:
    """Return the fix that moves a statement after a later one; None if impossible.

    In the same loop and function, the statement comes directly after the later one, under the same conditions. If the
    later one is in another loop or function, the statement moves to the end of the loop that contains it.

    Args:
        source: the file.
        moved: the operation whose statement is moved; the statement must do nothing else.
        later: an operation of the later statement.
        description: what the fix does.
        safe: whether the fix is safe, since the statements between the two do not depend on the moved one.
    """
    statement, anchor = moved.statement, later.statement
    if statement is None or anchor is None or not _is_sole_operation(moved) or len(body := source.block(statement)) < 2:
        return None
    if moved.function is later.function and moved.loops == later.loops:
        edits = source.text.move_statement(statement, after=anchor)
    elif moved.loops and body is getattr(moved.loops[-1].node, "body", None) and not _may_exit_early(body):
        edits = source.text.move_statement(statement, after=body[-1])
    else:
        return None
    return Fix(edits, safe=safe, description=description) if edits else None


def move_into_loop_fix(source: SourceFile, moved: Op, target: Op, description: str) -> Fix | None:
    """Return the fix that moves a statement after a target in another loop of the same function; None if impossible."""
    statement, anchor = moved.statement, target.statement
    if statement is None or anchor is None or moved.function is not target.function or not _is_sole_operation(moved):
        return None
    edits = source.text.move_statement(statement, after=anchor) if len(source.block(statement)) > 1 else None
    return Fix(edits, safe=False, description=description) if edits else None


def move_out_of_loop_fix(source: SourceFile, operation: Op, loop: Loop, description: str) -> Fix | None:
    """Return the fix that moves a statement before the loop that directly contains it; None if impossible."""
    body = source.block(operation.statement)
    if (
        operation.statement is None
        or not _is_sole_operation(operation)
        or body is not getattr(loop.node, "body", None)
        or len(body) < 2  # the loop would be empty
    ):
        return None
    edits = source.text.move_statement(operation.statement, before=loop.node)
    return Fix(edits, safe=False, description=description) if edits else None


def _is_sole_operation(operation: Op) -> bool:
    """Return True if the statement of an operation does nothing else, except to assign the result to a variable."""
    statement = operation.statement
    if isinstance(statement, ast.Assign):
        return (
            statement.value is operation.node
            and isinstance(statement.targets[0], ast.Name)
            and len(statement.targets) == 1
        )
    return isinstance(statement, ast.Expr) and statement.value is operation.node


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
