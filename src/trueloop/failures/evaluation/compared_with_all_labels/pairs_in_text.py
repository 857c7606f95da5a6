"""Reads from the text around a combination of two tensors whether the program wants all pairs of their values."""

import ast
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import assigned_in
from trueloop.analysis.source_file import last_name
from trueloop.core.source_text import children, dotted_name, nodes_in

MAX_STEPS: Final = 4  # variables between a combination and where their values come from
_FUNCTIONS: Final = ast.FunctionDef | ast.AsyncFunctionDef | ast.Module
_PAIRWISE: Final = frozenset((
    "argmin", "argmax", "argsort", "sort", "topk", "diagonal", "diag", "trace", "triu", "tril", "fill_diagonal_",
    "softmax", "log_softmax", "logsumexp", "cumsum", "matmul", "kthvalue", "masked_fill", "masked_fill_",
))  # fmt: skip
_REDUCTIONS: Final = frozenset(("sum", "mean", "median", "min", "max", "amin", "amax", "any", "all", "norm", "std"))
_TOTALS: Final = frozenset(("sum", "mean"))
_COLUMNS: Final = frozenset(("unsqueeze", "expand", "expand_as", "expand_dims", "repeat", "outer", "meshgrid"))
_SHAPES: Final = frozenset(("view", "reshape"))
_ELEMENTWISE: Final = frozenset((
    "abs", "pow", "square", "sqrt", "float", "double", "cpu", "numpy", "detach", "int", "long", "exp", "astype", "to",
))  # fmt: skip


class Combination:
    """A difference, comparison or product in a file, with the function around it.

    Args:
        tree: the file.
        node: an expression of this file.
    """

    def __init__(self, tree: ast.Module, node: ast.expr) -> None:
        self._parents = {id(inner): outer for outer in ast.walk(tree) for inner in children(outer)}
        self._node = node
        self._arguments = set[str]()
        parent: Any = node
        while not isinstance(parent, _FUNCTIONS):
            parent = self._parents[id(parent)]
            if isinstance(parent, ast.Lambda | ast.FunctionDef | ast.AsyncFunctionDef):
                self._arguments |= {each.arg for each in nodes_in(parent.args, ast.arg)}
        self._function: Any = parent

    def wants_pairs(self) -> bool:
        """Return True if a side is made a column or row on purpose, or if the pairs are reduced in one dimension."""
        makes_pairs = any(self._is_made_for_pairs(each) for each in sides(self._node))
        return makes_pairs or any(self._is_pairwise(each) for each in self._uses(self._node, MAX_STEPS))

    def is_summed(self) -> bool:
        """Return True if all pairs are added up or averaged."""
        return any(self._is_total(each) for each in self._uses(self._node, MAX_STEPS))

    def has_arguments(self) -> bool:
        """Return True if a side is an argument of the function around the combination, so its maker is elsewhere."""
        return any(each.id in self._arguments for side in sides(self._node) for each in nodes_in(side, ast.Name))

    def _is_made_for_pairs(self, side: ast.expr) -> bool:
        if any(_makes_column(each) for each in nodes_in(side, ast.Call, ast.Subscript)):
            return True
        for name in {each.id for each in nodes_in(side, ast.Name)}:
            for value in assigned_in(self._function, name):
                inner = _column_of(value)
                if inner not in ("", name):
                    return True
        return False

    def _uses(self, node: ast.AST, steps: int) -> Iterator[ast.AST]:
        """Yield the calls that get a value, also after elementwise operations and through variables."""
        parent = self._parents.get(id(node))
        while isinstance(parent, ast.BinOp | ast.UnaryOp | ast.Attribute | ast.Call | ast.Compare | ast.Subscript):
            if isinstance(parent, ast.Call | ast.Subscript):
                yield parent
                if not (isinstance(parent, ast.Call) and last_name(parent.func) in _ELEMENTWISE):
                    return
            parent = self._parents.get(id(parent))
        targets = parent.targets if isinstance(parent, ast.Assign) else []
        names = {each.id for each in targets if isinstance(each, ast.Name)} if steps else set[str]()
        for each in nodes_in(self._function, ast.Name) if names else ():
            if each.id in names and isinstance(each.ctx, ast.Load) and each.lineno >= parent.lineno:  # type: ignore[union-attr]
                yield from self._uses(each, steps - 1)

    def _is_pairwise(self, use: ast.AST) -> bool:
        if isinstance(use, ast.Subscript):
            return True
        name = last_name(use.func) if isinstance(use, ast.Call) else ""
        return name in _PAIRWISE or (name in _REDUCTIONS and _has_dimension(use))

    def _is_total(self, use: ast.AST) -> bool:
        return isinstance(use, ast.Call) and last_name(use.func) in _TOTALS and not _has_dimension(use)


def sides(node: ast.expr) -> tuple[ast.expr, ...]:
    """Return the two operands of a binary operation, a comparison, or a call such as ``a.eq(b)``."""
    match node:
        case ast.Compare(left=left, comparators=[right]) | ast.BinOp(left=left, right=right):
            return left, right
        case ast.Call(func=ast.Attribute(value=ast.Name(id="torch" | "np" | "F")), args=[left, right, *_]):
            return left, right
        case ast.Call(func=ast.Attribute(value=left), args=[right, *_]):
            return left, right
        case ast.Call(args=[left, right, *_]):
            return left, right
        case _:
            return ()


def find_node(tree: ast.Module, like: ast.expr, line: int) -> ast.expr | None:
    """Return the expression of a file with the same text as another one, nearest below a line."""
    text = ast.dump(like)
    found = [each for each in nodes_in(tree, type(like)) if abs(each.lineno - line) <= 8 and ast.dump(each) == text]
    return min(found, key=lambda each: abs(each.lineno - line), default=None)


def _has_dimension(call: Any) -> bool:
    is_method = not (isinstance(call.func, ast.Attribute) and dotted_name(call.func.value) in ("torch", "np", "numpy"))
    keywords = {each.arg for each in call.keywords}
    return len(call.args) > (not is_method) or bool(keywords & {"dim", "axis"})


def _makes_column(node: ast.AST) -> bool:
    """Return True for ``x[:, None]``, ``x.unsqueeze(0)`` and other operations that add a dimension."""
    if isinstance(node, ast.Subscript):
        return isinstance(node.slice, ast.Tuple) and any(
            (isinstance(each, ast.Constant) and each.value is None) or last_name(each) == "newaxis"
            for each in node.slice.elts
        )
    name = last_name(node.func) if isinstance(node, ast.Call) else ""
    is_shape = name in _SHAPES and isinstance(node, ast.Call) and len(node.args) > 1
    return name in _COLUMNS or is_shape


def _column_of(value: ast.expr) -> str:
    """Return the variable of which an expression makes a column or row: "x" for ``x[:, None]``; "" if there is none.

    ``view(-1, 1)`` does not count, since it rather gives the labels of a whole data set their shape.
    """
    if not _makes_column(value) or (isinstance(value, ast.Call) and last_name(value.func) in _SHAPES):
        return ""
    inner: Any = value.value if isinstance(value, ast.Subscript) else getattr(value, "func", value)
    inner = inner.value if isinstance(inner, ast.Attribute) and isinstance(value, ast.Call) else inner
    while isinstance(inner, ast.Call) and last_name(inner.func) in _ELEMENTWISE:
        inner = inner.func.value if isinstance(inner.func, ast.Attribute) else None
    return dotted_name(inner)
