"""Goes through the statements of a block in the order in which they are written."""

import ast
from collections.abc import Iterator, Sequence


def simple_statements(block: Sequence[ast.stmt], *, heads: bool = False) -> Iterator[ast.stmt]:
    """Yield the simple statements of a block and of the blocks in it, except those of definitions, in order.

    Args:
        block: the statements.
        heads: whether to yield what a ``for`` loop iterates over, as a statement of its own.
    """
    for each in block:
        inner = [getattr(each, name, []) for name in ("body", "orelse", "finalbody")]
        if isinstance(each, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            continue
        if not any(inner):
            yield each
        elif heads and isinstance(each, ast.For):
            yield ast.copy_location(ast.Expr(each.iter), each)
        for part in inner:
            yield from simple_statements(part, heads=heads)
