"""An assignment or an in-place operation changes a copy that indexing has made, so it has no effect.

What you see
    The masked positions keep their scores, the selected weights are not reset, the padding is not zero. No error is
    raised, and the line looks right.

Why it happens
    Indexing with a mask, a list or a tensor of indices returns a copy; only integers and slices return a view. One
    assignment ``x[mask] = 0`` writes into ``x``, but ``x[rows][:, columns] = 0`` and ``x[mask].zero_()`` first make a
    copy, change it and discard it.

Fix
    Assign with one index, or change the copy and assign it back:

        scores[rows[:, None], columns] = 0
        scores[mask] = scores[mask].clamp(min=0)

When this is fine
    - The first index is an integer or a slice, such as ``x[0][mask] = 0`` or ``x[2:5].zero_()``.
    - The copy has a name, or is the value of an expression.

How it is detected
    Only the linter finds it: an assignment to an item, or a statement that only calls a method whose name ends with an
    underscore, of an item of a tensor or array whose index is certainly a mask, a list or a tensor of indices.

References
    PyTorch documentation "Tensor views", https://docs.pytorch.org/docs/stable/tensor_view.html
    NumPy, "Assigning values to indexed arrays", https://numpy.org/doc/stable/user/basics.indexing.html
"""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import walk
from trueloop.failures.failure import Failure, Rule, Severity, changed

_INDICES: Final = frozenset((
    "arange", "argsort", "argwhere", "flatnonzero", "isin", "isnan", "logical_and", "logical_not", "logical_or",
    "nonzero", "permutation", "randperm",
))  # fmt: skip
"""Functions that return a mask or several indices."""
_PARTS: Final = frozenset(("split", "chunk", "tensor_split", "array_split"))
_COPIES: Final = frozenset(("clone", "index_select", "masked_select"))
_NAMES: Final = re.compile(r"(^|_)(mask|indices|idxs|perm|inds)$", re.IGNORECASE)
_NO_INDICES: Final = frozenset(("slice", "range", "int", "tuple", "len", "min", "max", "unravel_index", "item"))
_KEPT: Final = frozenset(("requires_grad_", "share_memory_"))
_MAX_DEPTH: Final = 4


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each statement that only changes a copy."""
    for node in source.nodes_of(ast.Assign, ast.AugAssign, ast.Expr):
        for expression in _changed_items(source, node):
            is_data = isinstance(expression, ast.Attribute) and expression.attr == "data"
            item = expression.value if is_data else expression
            owner = _owner_of_copy(source, item, in_place=isinstance(node, ast.Expr))
            if owner is not None:
                yield Hit(
                    message=f"`{ast.unparse(item)}` is a copy, and this line changes only the copy: "
                    f"`{ast.unparse(owner)}` keeps its values.",
                    node=node,
                )


def _changed_items(source: SourceFile, node: ast.AST) -> list[Any]:
    """Return the expressions whose values a statement changes: x of ``x[0] = 1``, ``x.zero_()``, ``init.zeros_(x)``."""
    match node:
        case (
            ast.Assign(targets=[ast.Subscript(value=item, slice=key)])
            | ast.AugAssign(target=ast.Subscript(value=item, slice=key))
        ):
            return [] if isinstance(key, ast.Constant) and isinstance(key.value, str) else [item]
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=owner, attr=name) as function, args=arguments)):
            if not name.endswith("_") or name.endswith("__") or name in _KEPT:
                return []
            return arguments[:1] if source.qualified_name(function).startswith("torch.") else [owner]
        case _:
            return []


def _owner_of_copy(source: SourceFile, item: ast.expr, *, in_place: bool) -> ast.expr | None:
    """Return what an expression copies; None if it may be a view, or an item of a list or dictionary.

    A comparison may have a single truth value, which is the key of a dictionary.
    """
    match item:
        case ast.Subscript(value=owner, slice=ast.Compare() as test) if not in_place:
            return owner if ast.unparse(owner) in [ast.unparse(each) for each in walk(test)] else None
        case ast.Subscript(value=owner, slice=index):
            parts = index.elts if isinstance(index, ast.Tuple) else [index]
            return owner if any(_selects(source, each, 0) for each in parts) else None
        case ast.Call(func=ast.Attribute(value=owner, attr=attr)) if attr in _COPIES:
            return owner
        case _:
            return None


def _selects(source: SourceFile, index: ast.expr, depth: int) -> bool:
    """Return True if an index certainly is a mask, a list or a tensor of indices."""
    match index:
        case ast.List() | ast.ListComp() | ast.Compare() | ast.UnaryOp(op=ast.Invert()):
            return True
        case ast.BinOp(op=ast.BitAnd() | ast.BitOr(), left=left, right=right):
            return _selects(source, left, depth) or _selects(source, right, depth)
        case (
            ast.Subscript(slice=ast.Slice(), value=inner)
            | ast.Call(
                func=ast.Attribute(
                    attr="bool" | "cpu" | "cuda" | "flatten" | "long" | "squeeze" | "to" | "view", value=inner
                )
            )
        ):
            return _selects(source, inner, depth)
        case ast.Call(func=function):
            return last_name(function) in _INDICES
        case ast.Name(id=name) if depth < _MAX_DEPTH:
            return _is_name_of_indices(source, index, name, depth + 1)
        case _:
            return False


def _is_name_of_indices(source: SourceFile, node: ast.expr, name: str, depth: int) -> bool:
    """Return True if a variable gets a mask or indices from every assignment, or is called so."""
    function = function_of(source, node)
    bindings = list(_bindings(function, name))
    if not bindings:
        return bool(_NAMES.search(name))
    return all(
        _selects_by_assignment(source, value, name, depth) if not is_loop else _is_split(source, value, depth)
        for value, is_loop in bindings
    )


def _bindings(function: Any, name: str) -> Iterator[tuple[ast.expr | None, bool]]:
    """Yield the values that a function assigns to a variable, and the iterables of its loops over the variable."""
    for each in walk(function):
        targets: list[Any] = []
        if isinstance(each, ast.Assign):
            targets = each.targets
        elif isinstance(each, ast.For | ast.comprehension | ast.AugAssign | ast.AnnAssign | ast.NamedExpr):
            targets = [each.target]
        for target in targets:
            stored = [each for each in walk(target) if isinstance(getattr(each, "ctx", None), ast.Store)]
            if any(isinstance(part, ast.Name) and part.id == name for part in stored):
                is_plain = isinstance(target, ast.Name)
                is_loop = isinstance(each, ast.For | ast.comprehension)
                value = getattr(each, "iter" if is_loop else "value", None)
                yield value if is_plain else None, is_loop


def _selects_by_assignment(source: SourceFile, value: ast.expr | None, name: str, depth: int) -> bool:
    is_named = bool(_NAMES.search(name))
    if value is None:
        return is_named
    if isinstance(value, ast.Compare):
        return is_named
    if _selects(source, value, depth):
        return True
    is_call = isinstance(value, ast.Call) and last_name(value.func) not in _NO_INDICES
    return is_named and (is_call or isinstance(value, ast.Attribute | ast.Subscript))


def _is_split(source: SourceFile, iterable: ast.expr | None, depth: int) -> bool:
    """Return True for ``indices.split(100)``."""
    match iterable:
        case ast.Call(func=ast.Attribute(attr=attr, value=owner), args=arguments) if attr in _PARTS:
            is_function = source.qualified_name(owner) in ("torch", "numpy")
            return _selects(source, arguments[0] if is_function and arguments else owner, depth)
        case _:
            return False


_CHANGE: Final = re.compile(
    r"\](?:\.data)?\[[^\n]*\][ \t]*(?:[-+*/%@&|^]|//|\*\*|<<|>>)?=(?!=)"  # x[mask][0] = 1
    r"|\](?:\.data)?\.\w+_\("  # x[mask].zero_()
    r"|(?:clone|index_select|masked_select)\([^\n]*\)(?:\.data)?(?:\[|\.\w+_\()"  # x.clone()[0] = 1
    r"|^[ \t]*[\w.]+_\([^\n]*[\])]",  # init.zeros_(x[mask])
    re.MULTILINE,
)
RULE = Rule(required_words=("torch", _CHANGE), find=find)

BAD = """
import torch

torch.manual_seed(0)
scores = torch.randn(6, 10)
seen = torch.rand(6, 10) > 0.7
users = torch.randperm(6)[:3]
scores[users][seen[users]] = float("-inf")
print(scores[users].topk(3).indices)
"""

FAILURE = Failure(
    code="MDL023",
    title="Assignment to a copy made by indexing has no effect",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(
        BAD,
        {
            'scores[users][seen[users]] = float("-inf")': (
                'scores[users] = scores[users].masked_fill(seen[users], float("-inf"))'
            )
        },
    ),
    fix="Assign to the tensor itself with one index, or assign the changed copy back.",
    rule=RULE,
)
