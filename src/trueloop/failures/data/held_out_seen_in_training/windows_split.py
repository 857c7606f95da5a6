"""Finds overlapping windows of a series, in a dataset or a list, that are split at random."""

import ast
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import assigned_pairs, function_of
from trueloop.analysis.queries.class_instances import definitions
from trueloop.analysis.queries.possible_values import MAX_DEPTH, origins
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import nodes_in

_SPLITS: Final = frozenset(("random_split", "train_test_split"))
_PERMUTATIONS: Final = frozenset(("permutation", "randperm"))


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each random split of windows that begin one step after the other, in a dataset or a list."""
    splits = [e for e in source.all_calls if last_name(e.func) in _SPLITS and e.args and not _is_ordered(e)]
    for split, samples in (*((each, each.args[0]) for each in splits), *_split_by_permutation(source)):
        window = next((each for value in origins(source, samples) for each in windows_in(source, value)), None)
        if window is not None:
            yield Hit(
                message=f"The samples of `{ast.unparse(samples)}` are overlapping windows, "
                f"`{ast.unparse(window)}`: split at random, nearly every held-out window shares its steps with a "
                "training window. Split the series by time first.",
                node=split,
                related=((window, "a window"),),
            )


def _split_by_permutation(source: SourceFile) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield each ``x[order[cut:]]`` with a random order whose first part is used, too, and the samples ``x``.

    The same holds for ``order[cut:]`` alone if the order is drawn for ``len(x)`` samples.
    """
    if _PERMUTATIONS.isdisjoint(definitions(source).calls):
        return
    parts = [(each, drawn) for each in source.nodes_of(ast.Subscript) if (drawn := _permutation_of(source, each))]
    firsts = {id(drawn) for each, drawn in parts if getattr(each.slice, "lower", 0) is None}
    rests = {id(each) for each, drawn in parts if getattr(each.slice, "upper", 0) is None and id(drawn) in firsts}
    seen = set[int]()
    for each in source.nodes_of(ast.Subscript) if rests else ():
        part = next((of for of in origins(source, each.slice) if id(of) in rests), None)
        if part is not None and id(part) not in seen:
            seen.add(id(part))
            yield each, each.value
    for each, drawn in parts:
        if id(each) in rests and id(each) not in seen and isinstance(drawn, ast.Call) and drawn.args:
            yield from ((each, e.args[0]) for e in origins(source, drawn.args[0]) if _is_length(e))  # type: ignore[attr-defined]


def _is_length(node: ast.expr) -> bool:
    """Return True for ``len(x)``."""
    return isinstance(node, ast.Call) and last_name(node.func) == "len" and len(node.args) == 1


def _permutation_of(source: SourceFile, part: ast.Subscript) -> ast.expr | None:
    """Return the call that drew a random order of which an expression is a part."""
    if not isinstance(part.slice, ast.Slice) or part.slice.step is not None:
        return None
    return next((e for e in origins(source, part.value) if last_name(getattr(e, "func", None)) in _PERMUTATIONS), None)


def _is_ordered(call: ast.Call) -> bool:
    """Return True for ``train_test_split(x, shuffle=False)``."""
    return any(each.arg in ("shuffle", "groups") and getattr(each.value, "value", 1) is False for each in call.keywords)


def windows_in(source: SourceFile, value: ast.expr, depth: int = MAX_DEPTH) -> Iterator[ast.expr]:
    """Yield a window of the samples that an expression makes, if each begins one step after the one before."""
    match value:
        case ast.Call(func=func) if last_name(func) in definitions(source).classes:
            window = _window(source, definitions(source).classes[last_name(func)])
            yield from [window] if window is not None else []
        case ast.Call(func=func, args=[_, length, *rest]) if last_name(func) == "sliding_window_view":
            yield from [value] if not rest and not (isinstance(length, ast.Constant) and length.value == 1) else []
        case ast.Call(func=ast.Attribute(attr="unfold"), args=[_, _, ast.Constant(value=1)]):
            yield value
        case ast.Call(func=func, args=[inner, *_]) if last_name(func) in _COLLECTING and depth:
            for each in origins(source, inner):
                yield from windows_in(source, each, depth - 1)
        case ast.ListComp(elt=elt, generators=[ast.comprehension(target=ast.Name(id=index), iter=over)]):
            yield from _slices_of(source, elt, index) if _is_every_step(over) else []
        case ast.List(elts=[]):
            yield from _appended(source, value)
        case _:
            pass


_COLLECTING: Final = frozenset((
    "array", "asarray", "stack", "tensor", "as_tensor", "from_numpy", "vstack", "TensorDataset", "list", "Tensor",
))  # fmt: skip


def _is_every_step(iterable: ast.expr) -> bool:
    """Return True for ``range(n)`` and ``range(start, n)``."""
    return isinstance(iterable, ast.Call) and last_name(iterable.func) == "range" and len(iterable.args) < 3


def _appended(source: SourceFile, empty: ast.expr) -> Iterator[ast.expr]:
    """Yield a window that a loop over all steps appends to a list which begins empty."""
    statement = source.statement_of(empty)
    pairs = assigned_pairs(statement) if isinstance(statement, ast.Assign) else ()
    names = {ast.unparse(target) for target, value in pairs if value is empty}
    for loop in nodes_in(function_of(source, empty), ast.For):
        if isinstance(loop.target, ast.Name) and _is_every_step(loop.iter):
            for call in nodes_in(loop, ast.Call):
                is_append = isinstance(call.func, ast.Attribute) and call.func.attr == "append" and bool(call.args)
                if is_append and ast.unparse(call.func.value) in names:  # type: ignore[attr-defined]
                    yield from _slices_of(source, call.args[0], loop.target.id)


def _window(source: SourceFile, kind: ast.ClassDef) -> ast.Subscript | None:
    """Return ``x[i:i + length]`` in the ``__getitem__(self, i)`` of a dataset; None if a window starts elsewhere."""
    for method in kind.body:
        if not isinstance(method, ast.FunctionDef) or method.name != "__getitem__" or len(method.args.args) < 2:
            continue
        index = method.args.args[1].arg
        stores: list[Any] = [each for each in nodes_in(method, ast.Name) if isinstance(each.ctx, ast.Store)]
        if any(each.id == index for each in stores):
            return None
        return next(_slices_of(source, method, index), None)
    return None


def _slices_of(source: SourceFile, node: ast.AST, index: str) -> Iterator[ast.Subscript]:
    """Yield each ``x[i:i + length]`` within a node, also with ``end = i + length``; not ``x[i:i + 1]``."""
    for item in nodes_in(node, ast.Subscript):
        match item.slice:
            case ast.Slice(lower=ast.Name(id=first), upper=ast.expr() as upper) if first == index:
                for each in origins(source, upper, 1):
                    match each:
                        case ast.BinOp(op=ast.Add(), left=ast.Name(id=second), right=length) if second == index:
                            if not (isinstance(length, ast.Constant) and length.value == 1):
                                yield item
                        case _:
                            pass
            case _:
                pass
