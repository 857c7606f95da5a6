"""Finds clipping of gradients of a loss that the program multiplies itself, before it divides the gradients."""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.class_instances import called_function, definitions
from trueloop.analysis.queries.possible_values import computed_from, origins, possible_values
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import nodes_in

_CLIPPING: Final = frozenset(("clip_grad_norm_", "clip_grad_value_", "clip_grad_norm"))
_DIVIDING: Final = frozenset(("div_", "mul_", "_foreach_div_", "_foreach_mul_"))
_NORMS: Final = frozenset(("norm", "vector_norm", "get_total_norm", "sqrt"))
_ACCUMULATION: Final = re.compile(r"accum|steps|batches|num_|len\(|world|count|weight|lambda|coef|alpha", re.IGNORECASE)
_GRADIENT: Final = re.compile(r"grad|(^|[^a-z])gs?($|[^a-z])")
_MAX_DEPTH: Final = 2


class _Scaled(NamedTuple):
    """The backward pass of a loss that is multiplied by a factor."""

    call: ast.Call
    factor: str
    names: frozenset[str]
    """Names of the factor, also where it is an argument or a parameter."""


class _Change(NamedTuple):
    """A clipping or a division of the gradients, or a call of a function that does it."""

    node: ast.AST
    inner: ast.AST
    """The statement that changes the gradients."""
    divides: bool


def clipped_while_scaled(source: SourceFile) -> Iterator[Hit]:
    """Yield each clipping between ``(loss * scale).backward()`` and ``p.grad /= scale``, also in other functions."""
    backwards = list(_scaled_backwards(source))
    reported: set[int] = set()
    for scope in [source.tree, *source.nodes_of(ast.FunctionDef)] if backwards else ():
        for backward in backwards:
            start = _line_of(source, scope, backward.call)
            changes = [each for each in _changes(source, scope, backward) if _line(each) > start]
            later = sorted(changes, key=_line)
            divided = next((each for each in later if each.divides), None)
            if divided is None or later[0].divides or id(later[0].inner) in reported:
                continue
            reported.add(id(later[0].inner))
            yield Hit(
                message=f"The gradients are clipped while they are still multiplied by `{backward.factor}`, so their "
                f"norm is limited to 1/{backward.factor} of what is meant: divide them first.",
                node=later[0].node,
                related=((backward.call, "`backward()` of the scaled loss"), (divided.node, "divided here")),
            )


def _scaled_backwards(source: SourceFile) -> Iterator[_Scaled]:
    """Yield each backward pass from a product of a loss and a variable."""
    for call in source.all_calls:
        match call.func:
            case ast.Attribute(attr="backward", value=root):
                roots = call.args[:1] if last_name(root) == "autograd" else [root]
            case _:
                continue
        for each in [value for root in roots for value in (root, *possible_values(source, root))]:
            if not isinstance(each, ast.BinOp) or not isinstance(each.op, ast.Mult):
                continue
            for side in (each.left, each.right):
                text = ast.unparse(side)
                is_loss = re.search(r"loss|crit|entropy|mse|nll", text, re.IGNORECASE) and "scale" not in text.lower()
                if isinstance(side, ast.Name | ast.Attribute) and not _ACCUMULATION.search(text) and not is_loss:
                    yield _Scaled(call, text, frozenset(_names_of(source, side)))


def _names_of(source: SourceFile, factor: ast.expr) -> Iterator[str]:
    """Yield the last names of a factor, and of what it is as an argument."""
    for value in origins(source, factor, 3):
        if isinstance(value, ast.Name | ast.Attribute):
            yield last_name(value)


def _changes(source: SourceFile, scope: Any, backward: _Scaled, depth: int = _MAX_DEPTH) -> Iterator[_Change]:
    """Yield what a function does to the gradients, itself or in functions that it calls."""
    for node in _own_nodes(scope):
        if _divides(source, node, backward.names):
            yield _Change(node, node, divides=True)
        elif _clips(source, node, backward):
            yield _Change(node, node, divides=False)
        elif isinstance(node, ast.Call) and depth:
            function = _called(source, node)
            inner = sorted(_changes(source, function, backward, depth - 1), key=_line) if function is not None else []
            if len({each.divides for each in inner}) == 1:
                yield _Change(node, inner[0].inner, inner[0].divides)
            elif inner and inner[0].divides:
                yield _Change(node, inner[0].inner, divides=True)


def _line(change: _Change) -> int:
    return int(getattr(change.node, "lineno", 0))


def _line_of(source: SourceFile, scope: Any, backward: ast.Call) -> int:
    """Return the line at which a function runs a backward pass, itself or by a call; 0 if it does not."""
    function = function_of(source, backward)
    if function is scope:
        return backward.lineno
    lines = [
        each.lineno for each in _own_nodes(scope) if isinstance(each, ast.Call) and _called(source, each) is function
    ]
    return min(lines, default=0)


def _called(source: SourceFile, call: ast.Call) -> ast.FunctionDef | None:
    """Return the function or method of the program that a call runs, not a constructor."""
    function = called_function(source, call)
    return function if function is not None and last_name(call.func) not in definitions(source).classes else None


def _own_nodes(scope: Any) -> Iterator[ast.AST]:
    """Yield the statements and calls of a function, without those of functions in it."""
    queue: list[Any] = list(scope.body)
    while queue:
        each = queue.pop(0)
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        yield each
        queue += ast.iter_child_nodes(each)


def _divides(source: SourceFile, node: ast.AST, factor: frozenset[str]) -> bool:
    """Return True for a statement that divides a gradient by a factor."""
    change = _gradient_change(node)
    if change is None:
        return False
    names = {name for part in nodes_in(change, ast.Name, ast.Attribute) for name in _names_of(source, part)}
    return bool(names & factor) and not any(last_name(e.func) in _NORMS for e in nodes_in(change, ast.Call))


def _gradient_change(node: ast.AST) -> ast.expr | None:
    """Return by what a statement multiplies or divides a gradient; None for other statements."""
    match node:
        case ast.AugAssign(op=ast.Div() | ast.Mult(), target=target, value=value):
            return value if _GRADIENT.search(ast.unparse(target)) else None
        case ast.Call(func=ast.Attribute(attr=attr, value=owner), args=[*_, value]) if attr in _DIVIDING:
            return value if _GRADIENT.search(ast.unparse(node).rpartition(",")[0] or ast.unparse(owner)) else None
        case ast.Assign(targets=[ast.Attribute(attr="grad")], value=ast.BinOp(op=ast.Div() | ast.Mult(), right=value)):
            return value
        case _:
            return None


def _clips(source: SourceFile, node: ast.AST, backward: _Scaled) -> bool:
    """Return True for a clipping by a limit that is not multiplied by the factor of the loss, and not infinite."""
    if isinstance(node, ast.Call) and last_name(node.func) in _CLIPPING:
        text = ast.unparse(node)
        limits = [*node.args[1:2], *(each.value for each in node.keywords if each.arg in ("max_norm", "clip_value"))]
        used = {name for each in limits for n in computed_from(source, each) for name in (last_name(n),) if name}
        return not used & backward.names and not re.search(r"inf\b", text)
    change = _gradient_change(node)
    if change is None:
        return False
    parts = list(computed_from(source, change))
    is_norm = any(isinstance(each, ast.Call) and last_name(each.func) in _NORMS for each in parts)
    is_norm |= any(
        isinstance(e, ast.BinOp) and isinstance(e.op, ast.Pow) and ast.unparse(e.right) == "0.5" for e in parts
    )
    return is_norm and not any(last_name(each) in backward.names for each in parts)
