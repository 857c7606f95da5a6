"""Finds clipping of gradients of a loss that the program multiplies itself, before it divides the gradients."""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import nodes_in

_CLIPPING: Final = frozenset(("clip_grad_norm_", "clip_grad_value_", "clip_grad_norm"))
_DIVIDING: Final = frozenset(("div_", "mul_"))
_ACCUMULATION: Final = re.compile(r"accum|steps|batches|num_|len\(|world|count", re.IGNORECASE)


def clipped_while_scaled(source: SourceFile) -> Iterator[Hit]:
    """Yield each clipping between ``(loss * scale).backward()`` and ``p.grad /= scale``."""
    for clip in source.all_calls:
        if last_name(clip.func) not in _CLIPPING or ast.unparse(clip).endswith("inf'))"):
            continue
        function = function_of(source, clip)
        for factor, backward in _scaled_backwards(function):
            divided = [each for each in _divisions(function, factor) if each.lineno > backward.lineno]
            earlier = [each for each in divided if each.lineno < clip.lineno]
            limit = clip.args[1] if len(clip.args) > 1 else None
            is_scaled_limit = limit is not None and factor in ast.unparse(limit)
            if divided and not earlier and backward.lineno < clip.lineno and not is_scaled_limit:
                yield Hit(
                    message=f"The gradients are clipped while they are still multiplied by `{factor}`, so their norm "
                    f"is limited to 1/{factor} of what is meant: divide them first.",
                    node=clip,
                    related=((backward, "`backward()` of the scaled loss"), (divided[0], "divided here")),
                )
                break


def _scaled_backwards(function: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    """Yield the factor and the call of each backward pass from a product of a loss and a variable."""
    products = {
        ast.unparse(each.targets[0]): each.value
        for each in nodes_in(function, ast.Assign)
        if isinstance(each.value, ast.BinOp) and isinstance(each.value.op, ast.Mult)
    }
    for call in nodes_in(function, ast.Call):
        root: Any = call.func.value if isinstance(call.func, ast.Attribute) and call.func.attr == "backward" else None
        root = products.get(ast.unparse(root), root) if root is not None else None
        if isinstance(root, ast.BinOp) and isinstance(root.op, ast.Mult):
            for side in (root.left, root.right):
                text = ast.unparse(side)
                if isinstance(side, ast.Name | ast.Attribute) and not _ACCUMULATION.search(text):
                    yield text, call


def _divisions(function: ast.AST, factor: str) -> Iterator[ast.stmt]:
    """Yield the statements that divide a gradient by a factor."""
    for each in nodes_in(function, ast.AugAssign, ast.Expr, ast.Assign):
        text = ast.unparse(each)
        if ".grad" not in text or factor not in text:
            continue
        match each:
            case ast.AugAssign(op=ast.Div() | ast.Mult()):
                yield each
            case ast.Expr(value=ast.Call(func=ast.Attribute(attr=attr))) if attr in _DIVIDING:
                yield each
            case ast.Assign(value=ast.BinOp(op=ast.Div() | ast.Mult())):
                yield each
            case _:
                pass
