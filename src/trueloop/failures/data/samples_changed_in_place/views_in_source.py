"""Finds ``__getitem__`` methods that change a view of what the dataset stores, in the source."""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from trueloop.analysis.queries.batch_loops import is_label
from trueloop.analysis.queries.possible_values import origins
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import nodes_in, walk
from trueloop.failures.failure import Rule

_SHARING: Final = frozenset((
    "from_numpy", "as_tensor", "asarray", "squeeze", "unsqueeze", "view", "permute", "transpose", "numpy", "detach",
))  # fmt: skip
"""Functions and methods whose result shares memory with what they get."""
_CHANGING: Final = frozenset(("sub_", "div_", "mul_", "add_", "normal_", "neg_", "pow_"))
_ARRAYS: Final = frozenset((
    "array", "astype", "rand", "randn", "normal", "standard_normal", "zeros", "ones", "stack", "tensor", "from_numpy",
    "cat", "concatenate", "empty", "full", "vstack", "to_numpy", "float32", "FloatTensor", "uniform", "randint",
))  # fmt: skip
"""Functions and methods that return arrays."""
_NOISE: Final = frozenset(("randn_like", "rand_like", "standard_normal", "randn"))
_FRESH: Final = re.compile(r"h5|zarr|lmdb|dataset|(^|_)(ds|db|file|base|subset|source)($|_)|File\(", re.IGNORECASE)
"""Objects that return a new array for each item."""


class _Change(NamedTuple):
    """A statement that changes a view of a stored sample."""

    statement: Any
    name: str
    view: ast.Subscript


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield the first change of a stored sample in each ``__getitem__``."""
    for definition in source.nodes_of(ast.ClassDef):
        methods = [each for each in definition.body if isinstance(each, ast.FunctionDef)]
        method = next((each for each in methods if each.name == "__getitem__"), None)
        if method is None or len(method.args.args) != 2:
            continue
        for change in _changes(method):
            if _is_stored(definition, change.view) and _is_array(source, method, change):
                yield Hit(
                    message=f"`{ast.unparse(change.statement)}` changes what the dataset stores: `{change.name}` "
                    f"shares memory with `{ast.unparse(change.view)}`: each read changes the sample again.",
                    node=change.statement,
                    related=((change.view, "the stored sample"),),
                )
                break


def _changes(method: ast.FunctionDef) -> Iterator[_Change]:
    """Yield the statements that change a view of a stored sample, in order."""
    views: dict[str, ast.Subscript] = {}
    indices = {method.args.args[1].arg}
    for statement in _statements(method.body):
        name = _changed_name(method, statement)
        if name in views:
            yield _Change(statement, name, views[name])
        for target in statement.targets if isinstance(statement, ast.Assign) else ():
            for each, value in _pairs(target, statement.value):  # type: ignore[union-attr]
                view = _view(value, indices, views)
                if not isinstance(value, ast.Call) or last_name(value.func) not in _CHANGING:
                    views.pop(each, None)
                views |= {each: view} if view is not None else {}
                indices |= {each} if view is not None and re.search("ind|idx|order|perm", ast.unparse(view)) else set()


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """Yield the variables of an assignment with their values; for a tuple that a call returns, the call."""
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, ast.Tuple):
        values = value.elts if isinstance(value, ast.Tuple) else []
        for number, each in enumerate(target.elts):
            if isinstance(each, ast.Name):
                yield each.id, values[number] if len(values) == len(target.elts) else ast.Constant(None)


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the simple statements of a block and of its inner blocks, in order."""
    for each in body:
        inner = [getattr(each, name, []) for name in ("body", "orelse", "finalbody")]
        if not any(inner):
            yield each
        for part in inner:
            yield from _statements(part)


def _view(node: ast.expr, indices: set[str], views: dict[str, ast.Subscript]) -> ast.Subscript | None:
    """Return the stored item ``self.images[index]`` with which a value shares memory; None if with none."""
    match node:
        case ast.Subscript(value=ast.Attribute(value=ast.Name(id="self")), slice=ast.Name(id=name)):
            return node if name in indices else None
        case ast.Name(id=name):
            return views.get(name)
        case ast.Subscript(value=inner, slice=ast.Slice()):
            return _view(inner, indices, views)
        case ast.Call(func=ast.Attribute(value=ast.Name(id="torch" | "np"), attr=attr), args=[inner]):
            return _view(inner, indices, views) if attr in _SHARING else None
        case ast.Call(func=ast.Attribute(value=inner, attr=attr)) if attr in _SHARING:
            return _view(inner, indices, views)
        case _:
            return None


def _changed_name(method: ast.FunctionDef, statement: ast.stmt) -> str:
    """Return the variable whose memory a statement changes each time, such as ``x += 1`` or ``x.mul_(2)``; else ""."""
    match statement:
        case ast.AugAssign(target=ast.Name(id=name) | ast.Subscript(value=ast.Name(id=name))):
            return name
        case ast.Assign(targets=[ast.Subscript(value=ast.Name(id=name), slice=index)]):
            # setting the same items to the same values again changes nothing
            local = {each.id for each in nodes_in(method, ast.Name) if isinstance(each.ctx, ast.Store)}
            used = {each.id for each in nodes_in(index, ast.Name)}
            is_text = any(isinstance(each, ast.Constant) and isinstance(each.value, str) for each in walk(index))
            return name if used & local and name not in used and not is_text else ""
        case ast.Expr(value=ast.Call() as call) | ast.Assign(value=ast.Call() as call):
            names = [last_name(each) for each in _owners(call)]
            return names[0] if names else ""
        case _:
            return ""


def _owners(call: ast.expr) -> Iterator[ast.Name]:
    """Yield the variable that a chain such as ``x.sub_(mean).div_(deviation)`` changes, if it changes one."""
    changes = False
    while isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
        changes |= call.func.attr in _CHANGING
        call = call.func.value
    if changes and isinstance(call, ast.Name):
        yield call


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
            if isinstance(each.ctx, ast.Store) and last_name(each) == name
        ]
        if (stores or items) and getattr(method, "name", "") != "__init__":
            return False
    return True


def _is_array(source: SourceFile, method: ast.FunctionDef, change: _Change) -> bool:
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
    match change.statement:
        case ast.AugAssign(target=ast.Name() as target, value=value):
            has_noise = any(last_name(each.func) in _NOISE and each.args for each in nodes_in(value, ast.Call))
            return wrapped or has_noise or (stores_arrays and not is_label(target) and not is_label(change.view.value))
        case ast.Expr() | ast.Assign(value=ast.Call()):
            return True
        case _:
            return wrapped or stores_arrays


RULE = Rule(required_words=("__getitem__", " += | -= | *= | /= |] = |_("), find=find)
