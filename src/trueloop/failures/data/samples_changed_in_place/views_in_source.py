"""Finds ``__getitem__`` methods that change a view of what the dataset stores, in the source."""

import ast
import re
from collections.abc import Iterator
from functools import partial
from typing import Final

from trueloop.analysis.queries.batch_loops import is_label
from trueloop.analysis.queries.possible_values import origins
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import nodes_in
from trueloop.failures.data.samples_changed_in_place.hand_made_batches import changed_batches
from trueloop.failures.data.samples_changed_in_place.in_functions import SHARING, ChangedView, Views, changed_views
from trueloop.failures.data.samples_changed_in_place.lost_masks import lost_masks
from trueloop.failures.failure import Rule

_ARRAYS: Final = frozenset((
    "array", "astype", "rand", "randn", "normal", "standard_normal", "zeros", "ones", "stack", "tensor", "from_numpy",
    "cat", "concatenate", "empty", "full", "vstack", "to_numpy", "float32", "FloatTensor", "uniform", "randint",
))  # fmt: skip
"""Functions and methods that return arrays."""
_NOISE: Final = frozenset(("randn_like", "rand_like", "standard_normal", "randn"))
_FRESH: Final = re.compile(r"h5|zarr|lmdb|dataset|(^|_)(ds|db|file|base|subset|source)($|_)|File\(", re.IGNORECASE)
"""Objects that return a new array for each item."""


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield the first change of a stored sample in each ``__getitem__``, and of a slice of the data in each loop."""
    for changed in changed_batches(source):
        yield Hit(
            message=f"`{ast.unparse(changed.statement)}` changes the data itself, since it gets the slice "
            f"`{ast.unparse(changed.view)}`, which shares its memory: each epoch changes what the earlier ones have "
            "changed.",
            node=changed.statement,
            related=((changed.view, "the slice of the data"),),
        )
    for definition in source.nodes_of(ast.ClassDef):
        methods = [each for each in definition.body if isinstance(each, ast.FunctionDef)]
        method = next((each for each in methods if each.name == "__getitem__"), None)
        if method is None or len(method.args.args) != 2:
            continue
        for lost in lost_masks(source, definition):
            if not any(_FRESH.search(ast.unparse(each)) for each in origins(source, lost.view.value)):
                yield Hit(
                    message=f"`{ast.unparse(lost.statement)}` changes what the dataset stores, and `{lost.mask}` is "
                    "computed from it: when the sample is read again, the mask is another one.",
                    node=lost.statement,
                    related=((lost.view, "the stored sample"),),
                )
        stored = [
            each
            for each in changed_views(source, method, method.body, partial(_view, method.args.args[1].arg))
            if _is_stored(definition, each.view)
        ]
        change = next((each for each in stored if _is_array(source, method, each)), None)
        if change is not None:
            where = f" in `{ast.unparse(change.call.func)}`" if change.call is not None else ""
            yield Hit(
                message=f"`{ast.unparse(change.statement)}`{where} changes what the dataset stores: `{change.name}` "
                f"shares memory with `{ast.unparse(change.view)}`: each read changes the sample again.",
                node=change.statement,
                related=((change.view, "the stored sample"),),
            )


def _view(index: str, node: ast.expr, views: Views) -> ast.Subscript | None:
    """Return the stored item ``self.images[index]`` with which a value shares memory; None if with none."""
    match node:
        case ast.Subscript(
            value=ast.Attribute(value=ast.Name(id="self")), slice=ast.Name(id=name) | ast.BinOp(left=ast.Name(id=name))
        ):
            is_chosen = name in views and re.search("ind|idx|order|perm", ast.unparse(views[name])) is not None
            return node if is_chosen or name == index else None  # also self.images[index % len(self.images)]
        case ast.Name(id=name):
            return views.get(name)
        case ast.Subscript(value=inner, slice=ast.Slice()):
            return _view(index, inner, views)
        case ast.Call(func=ast.Attribute(value=ast.Name(id="torch" | "np"), attr=attr), args=[inner]):
            return _view(index, inner, views) if attr in SHARING else None
        case ast.Call(func=ast.Attribute(value=inner, attr=attr)) if attr in SHARING:
            return _view(index, inner, views)
        case _:
            return None


def _is_stored(definition: ast.ClassDef, view: ast.Subscript) -> bool:
    """Return True if only ``__init__`` sets the attribute, so that the samples are not made again."""
    name = last_name(view)
    for method in definition.body:
        stores = [
            each
            for each in (nodes_in(method, ast.Attribute) if isinstance(method, ast.FunctionDef) else ())
            if each.attr == name and isinstance(each.ctx, ast.Store)
        ]
        items = [
            each
            for each in nodes_in(method, ast.Subscript)
            if isinstance(each.ctx, ast.Store) and ast.unparse(each).startswith(f"self.{name}[")
        ]
        if (stores or items) and getattr(method, "name", "") != "__init__":
            return False
    return True


def _is_array(source: SourceFile, method: ast.FunctionDef, change: ChangedView) -> bool:
    """Return True if a stored item is an array, and not a number or an object that is made for each access."""
    known = [*origins(source, change.view.value)]
    known += [each for value in known[1:] for name in nodes_in(value, ast.Name) for each in origins(source, name)]
    if any(_FRESH.search(ast.unparse(each)) for each in known):
        return False
    calls = [each for value in known for each in nodes_in(value, ast.Call)]
    stores_arrays = any(last_name(each.func) in _ARRAYS for each in calls)
    wrapped = any(
        last_name(each.func) == "from_numpy" and change.view in each.args for each in nodes_in(method, ast.Call)
    )
    if change.call is not None and not isinstance(change.statement, ast.AugAssign):
        return stores_arrays
    match change.statement:
        case ast.AugAssign(target=ast.Name() as target, value=value):
            has_noise = any(last_name(each.func) in _NOISE and each.args for each in nodes_in(value, ast.Call))
            return wrapped or has_noise or (stores_arrays and not is_label(target) and not is_label(change.view.value))
        case ast.Expr() | ast.Assign(value=ast.Call()):
            return True
        case _:
            return wrapped or stores_arrays


RULE = Rule(required_words=("__getitem__|backward(", " += | -= | *= | /= |] = |_("), find=find)
