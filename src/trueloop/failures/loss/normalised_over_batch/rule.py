"""Finds products of rows that were normalised over the samples of the batch, in the source."""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.layer_arguments import argument_node
from trueloop.analysis.queries.possible_values import origins
from trueloop.analysis.queries.reductions import Reduction, reduction
from trueloop.analysis.queries.signed_terms import factors
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Edit, Fix, integer, nodes_in
from trueloop.failures.failure import Rule

_NORMS: Final = frozenset(("norm", "vector_norm", "matrix_norm"))
_LIMITS: Final = frozenset(("clamp", "clamp_min", "clip"))
_TRANSPOSED: Final = frozenset(("t", "transpose", "permute", "swapaxes", "T", "mT"))
_PRODUCTS: Final = frozenset(("matmul", "mm"))
_SIMILARITIES: Final = re.compile(r"cross_entropy|CrossEntropy|logsumexp|softmax|temperature|tau|cos|sim|contrast")
_TRAINS: Final = re.compile(r"loss|Loss|entropy|backward\(|\berr\b")
_ROWS: Final = re.compile(r"^(\w)(\w),(\w)\2->\1\3$")


class _Normalised(NamedTuple):
    call: ast.Call
    """The call that normalises, or that computes the norm."""
    operand: ast.expr | None
    """What has one norm for all its dimensions; None for a call with dim=0."""


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each product of rows that were normalised over the batch."""
    reported: set[int] = set()
    for node in source.nodes_of(ast.BinOp, ast.Call):
        pair = _compared_rows(node)
        if pair is not None:
            first, second = (_normalised(source, each) for each in pair)
        else:
            first, second = _divided_product(source, node) or (None, None)
        if first is None or second is None or id(first.call) in reported or not _is_similarity(source, node, first):
            continue
        reported |= {id(first.call), id(second.call)}
        yield _hit(source, node, first, second)


def _hit(source: SourceFile, node: ast.expr, first: _Normalised, second: _Normalised) -> Hit:
    call, product = ast.unparse(first.call), ast.unparse(node)
    edits = [_edit(source, each) for each in {id(each.call): each for each in (first, second)}.values()]
    what = f"`{call}` normalises over the samples of the batch, but `{product}` compares rows: normalise over the "
    if first.operand is not None:
        what = f"`{call}` is one number for all samples, but `{product}` compares rows: divide each by the norm of its "
    return Hit(
        message=f"{what}features, dim=1.",
        node=first.call,
        related=((node, "the rows are compared here"),),
        fix=Fix(tuple(edits), safe=False, description="Normalise over the features"),
    )


def _is_similarity(source: SourceFile, node: ast.expr, first: _Normalised) -> bool:
    """Return False for a norm of all rows in a program that does not compare samples in a loss."""
    if first.operand is None:
        return True
    is_number = isinstance(parent := source.parents.get(id(node)), ast.Attribute) and parent.attr in ("item", "trace")
    is_similarity = source.mentions(_SIMILARITIES) and source.mentions(_TRAINS) and not is_number
    return is_similarity and not _is_factor_of_rows(source, node)


def _is_factor_of_rows(source: SourceFile, node: ast.expr) -> bool:
    """Return True if the rows are multiplied again, as in an iteration that makes them orthogonal."""
    rows = getattr(node, "left", None)
    return isinstance(rows, ast.Name) and any(
        isinstance(each.op, ast.MatMult) and getattr(each.right, "id", "") == rows.id
        for each in nodes_in(function_of(source, node), ast.BinOp)
    )


def _edit(source: SourceFile, found: _Normalised) -> Edit:
    if found.operand is not None:
        return source.text.replace(found.call, f"{source.text.segment(found.operand)}.norm(dim=1, keepdim=True)")
    dim = next((each.value for each in found.call.keywords if each.arg in ("dim", "axis")), None)
    dim = dim or argument_node(found.call, "dim", 2)
    assert dim is not None
    return source.text.replace(dim, "1")


def _compared_rows(node: ast.expr) -> tuple[ast.expr, ast.expr | None] | None:
    """Return a and b of ``a @ b.T``, ``einsum("nd,md->nm", a, b)`` and ``(a * b).sum(1)``; None for other nodes."""
    left: Any = None
    right: Any = None
    match node:
        case ast.BinOp(op=ast.MatMult(), left=left, right=right):
            pass
        case ast.Call(func=ast.Attribute(attr="einsum"), args=[ast.Constant(value=str(text)), left, right]):
            return (left, right) if _ROWS.match(text.replace(" ", "")) else None
        case ast.Call(func=ast.Attribute(attr=name, value=ast.Name(id="torch")), args=[left, right]) if (
            name in _PRODUCTS
        ):
            pass
        case ast.Call(func=ast.Attribute(attr=name, value=left), args=[right]) if name in _PRODUCTS:
            pass
        case ast.Call():
            found = reduction(node, ("sum",))
            product = found.operand if found is not None and integer(found.dim) == 1 else None
            is_product = isinstance(product, ast.BinOp) and isinstance(product.op, ast.Mult)
            return (product.left, product.right) if is_product else None  # type: ignore[union-attr]
        case _:
            return None
    return left, _transposed(right)


def _transposed(node: ast.expr) -> ast.expr | None:
    """Return x of ``x.T`` and ``x.transpose(0, 1)``; None for other expressions."""
    match node:
        case ast.Attribute(attr=name, value=inner) | ast.Call(func=ast.Attribute(attr=name, value=inner)) if (
            name in _TRANSPOSED
        ):
            return node.args[0] if isinstance(node, ast.Call) and last_name(inner) == "torch" else inner
        case _:
            return None


def _normalised(source: SourceFile, node: ast.expr | None) -> _Normalised | None:
    """Return the call that normalises a value over the samples; None if nothing does, or if it is unclear."""
    while isinstance(node, ast.Subscript):
        node = node.value
    for each in origins(source, node) if node is not None else ():
        if isinstance(each, ast.Name):
            divisor = _divided_in_place(source, each)
            found = _norm(source, divisor, each) if divisor is not None else None
            if found is not None:
                return found
        quotient = _quotient(each)
        if quotient is not None:
            return _norm(source, quotient[1], quotient[0])
        match each:
            case ast.Call() if last_name(each.func) == "normalize":
                return _Normalised(each, None) if is_first_dimension(each) else None
            case ast.BinOp(op=ast.Mult(), left=left, right=right):
                return _normalised(source, left) or _normalised(source, right)
            case _:
                pass
    return None


def _quotient(node: ast.expr) -> tuple[ast.expr, ast.expr] | None:
    """Return dividend and divisor of ``x / y``, ``x.div(y)`` and ``torch.div(x, y)``; None for other expressions."""
    match node:
        case ast.BinOp(op=ast.Div(), left=left, right=right):
            return left, right
        case ast.Call(func=ast.Attribute(attr="div", value=ast.Name(id="torch")), args=[left, right]):
            return left, right
        case ast.Call(func=ast.Attribute(attr="div" | "div_", value=left), args=[right]):
            return left, right
        case _:
            return None


def _divided_in_place(source: SourceFile, name: ast.Name) -> ast.expr | None:
    """Return y of the last ``x /= y`` before a node."""
    found = [
        each.value
        for each in nodes_in(function_of(source, name), ast.AugAssign)
        if isinstance(each.op, ast.Div) and last_name(each.target) == name.id and each.lineno < name.lineno
    ]
    return found[-1] if found else None


def _norm(source: SourceFile, divisor: ast.expr, dividend: ast.expr | None) -> _Normalised | None:
    """Return the norm of something over the samples, or over all its dimensions; None if a divisor is no such norm."""
    for node in origins(source, divisor, 3):
        match node:
            case ast.BinOp(op=ast.Add(), left=inner, right=ast.Constant() | ast.Name() | ast.Attribute()):
                return _norm(source, inner, dividend)
            case ast.Call(func=ast.Attribute(attr=name, value=inner)) if (
                name in _LIMITS and last_name(inner) != "torch"
            ):
                return _norm(source, inner, dividend)
            case _:
                pass
        found = reduction(node, _NORMS) or _root_of_squares(node)
        if found is None or not isinstance(node, ast.Call):
            continue
        of_same = dividend is None or ast.unparse(found.operand) == ast.unparse(dividend)
        if found.dim is None:
            is_row = isinstance(found.operand, ast.Subscript) and integer(found.operand.slice) is not None
            return _Normalised(node, found.operand) if of_same and not is_row else None
        return _Normalised(node, None) if of_same and is_first_dimension(node) else None
    return None


def _root_of_squares(node: ast.expr) -> Reduction | None:
    """Return what ``x.pow(2).sum().sqrt()`` and ``torch.sqrt((x ** 2).sum())`` reduce; None for anything else."""
    root = reduction(node, ("sqrt",))
    total = reduction(root.operand, ("sum",)) if root is not None else None
    match total.operand if total is not None else None:
        case ast.BinOp(op=ast.Pow(), left=inner) | ast.Call(func=ast.Attribute(attr="pow" | "square", value=inner)):
            return None if total is None else total._replace(operand=inner)
        case _:
            return None


def _divided_product(source: SourceFile, node: ast.expr) -> tuple[_Normalised, _Normalised] | None:
    """Return both norms of ``(a @ b.T) / (a.norm() * b.norm())``."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Div):
        return None
    norms: list[_Normalised] = []
    for value in origins(source, node.right, 1):
        norms = [found for each in factors(value)[1] if (found := _norm(source, each, None)) is not None]
        if len(norms) == 2:
            break
    pairs = [pair for each in origins(source, node.left, 2) if (pair := _compared_rows(each)) is not None]
    if len(norms) != 2 or not pairs:
        return None
    compared = {ast.unparse(each) for each in pairs[0] if each is not None}
    of = {ast.unparse(each.operand) for each in norms if each.operand is not None}
    return (norms[0], norms[1]) if compared == of else None


def is_first_dimension(call: ast.Call) -> bool:
    """Return True if a call names dimension 0."""
    dim = next((each.value for each in call.keywords if each.arg in ("dim", "axis")), None)
    if dim is None and last_name(call.func) == "normalize":
        dim = argument_node(call, "dim", 2)
    return isinstance(dim, ast.Constant) and dim.value == 0


RULE: Final = Rule(
    required_words=("norm|sqrt(", ".T|.t(|transpose(|permute(|swapaxes(|mT|einsum(|.sum(", "0|loss|Loss|entropy|err"),
    find=find,
)
