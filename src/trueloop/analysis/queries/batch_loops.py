"""Finds the loops over batches in the text, and what their statements add up."""

import ast
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final, NamedTuple

from trueloop.analysis.operations import OpKind
from trueloop.analysis.queries.method_chains import without_calls
from trueloop.analysis.source_file import SourceFile, last_name
from trueloop.core.source_text import dotted_name, integer, nodes_in

_LOADER_NAME: Final = re.compile(r"load|batches|(^|_)dl($|_)|iterator|_iter$", re.IGNORECASE)
LOADER_WORDS: Final = "loader|Loader|batches|load:|load)|dl:|dl)|dl,|iterator|_iter"
"""One of these words is in every file with a loop over batches."""
_TRANSPARENT: Final = frozenset(("enumerate", "tqdm", "trange", "iter", "progress_bar", "track", "prefetch", "Bar"))
"""Functions that return the items of their first argument."""
_CONVERSIONS: Final = frozenset((
    "item", "float", "cpu", "detach", "numpy", "double", "int", "tolist", "data", "type", "to", "long",
))  # fmt: skip
_SPLITTING: Final = frozenset(("split", "chunk", "tensor_split", "array_split"))
_LABEL: Final = re.compile(r"label|target|truth|(^|_)(y|gt|lbl|tgt|yb|ys|trg)($|_)|y_?true|answer", re.IGNORECASE)
_LOSS_NAME: Final = re.compile(r"crit|loss|entropy|objective", re.IGNORECASE)


class BatchLoop(NamedTuple):
    """A loop over the batches of a loader."""

    node: ast.For
    loader: ast.expr
    """The loader, without ``enumerate`` and progress bars around it."""
    counter: str
    """Variable of ``enumerate``; "" if there is none."""
    function: Any
    """The function or module that contains the loop."""

    def is_length(self, node: ast.expr) -> bool:
        """Return True for ``len(loader)``."""
        is_len = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "len" and len(node.args) == 1
        return is_len and ast.unparse(node.args[0]) == ast.unparse(self.loader)  # type: ignore[attr-defined]


@lru_cache(maxsize=1)  # rules of one file follow each other
def batch_loops(source: SourceFile) -> tuple[BatchLoop, ...]:
    """Return the loops over a data loader, by what creates it or by its name."""
    return tuple(_batch_loops(source))


def _batch_loops(source: SourceFile) -> Iterator[BatchLoop]:
    for node in source.nodes_of(ast.For):
        iterable, counter = _loader_behind_bar(source, node), ""
        while isinstance(iterable, ast.Call) and last_name(iterable.func) in _TRANSPARENT and iterable.args:
            is_counted = last_name(iterable.func) == "enumerate" and isinstance(node.target, ast.Tuple)
            counter = getattr(node.target.elts[0], "id", "") if is_counted else counter  # type: ignore[attr-defined]
            iterable = _loader_behind_bar(source, node, iterable.args[0])
        if isinstance(iterable, ast.Name | ast.Attribute | ast.Subscript) and is_loader(source, iterable):
            yield BatchLoop(node, iterable, counter, function_of(source, node))


def _loader_behind_bar(source: SourceFile, loop: ast.For, iterable: ast.expr | None = None) -> ast.expr:
    """Return ``tqdm(loader)`` for a variable: ``bar = tqdm(loader)`` or ``with tqdm(loader) as bar`` before a loop."""
    iterable = iterable or loop.iter
    if not isinstance(iterable, ast.Name) or _LOADER_NAME.search(iterable.id):
        return iterable
    function = function_of(source, loop)
    made = [*assigned_in(function, iterable.id), *_opened_in(function).get(iterable.id, [])]
    before = [each for each in made if (each.end_lineno or 0) < iterable.lineno]  # bar = tqdm(bar) ends here
    latest = max(before, key=lambda each: each.lineno, default=None)
    is_bar = isinstance(latest, ast.Call) and last_name(latest.func) in _TRANSPARENT and latest.args
    return latest if is_bar and latest is not None else iterable


@lru_cache(maxsize=1024)
def _opened_in(function: Any) -> dict[str, list[ast.expr]]:
    """Return the values that ``with`` gives to the variables of a function."""
    found: dict[str, list[ast.expr]] = {}
    for each in nodes_in(function, ast.withitem):
        if isinstance(each.optional_vars, ast.Name):
            found.setdefault(each.optional_vars.id, []).append(each.context_expr)
    return found


@lru_cache(maxsize=1)
def hand_made_batch_loops(source: SourceFile) -> tuple[BatchLoop, ...]:
    """Return the loops over parts of a tensor, by ``split``, or by slices that start at the variable of the loop."""
    return tuple(_hand_made_batch_loops(source))


def _hand_made_batch_loops(source: SourceFile) -> Iterator[BatchLoop]:
    for node in source.nodes_of(ast.For):
        iterable, target = node.iter, node.target
        while isinstance(iterable, ast.Call) and last_name(iterable.func) in _TRANSPARENT and iterable.args:
            is_counted = last_name(iterable.func) == "enumerate" and isinstance(target, ast.Tuple)
            iterable, target = iterable.args[0], target.elts[-1] if is_counted else target  # type: ignore[attr-defined]
        if not isinstance(iterable, ast.Call) or (last_name(iterable.func) != "zip" and isinstance(target, ast.Tuple)):
            continue  # for train, test in folds.split(x)
        if is_split(iterable) or _is_over_slices(node, iterable):
            yield BatchLoop(node, iterable, "", function_of(source, node))


def is_split(call: ast.Call) -> bool:
    """Return True for ``x.split(32)`` or a ``zip`` of such calls."""
    if last_name(call.func) == "zip":
        return bool(call.args) and all(isinstance(each, ast.Call) and is_split(each) for each in call.args)
    size = call.args[-1] if call.args else None
    is_text = isinstance(size, ast.Constant) and (isinstance(size.value, str) or size.value == 1)
    return last_name(call.func) in _SPLITTING and size is not None and not is_text


def _is_over_slices(loop: ast.For, call: ast.Call) -> bool:
    """Return True for a loop over a range whose body reads slices that start at its variable, or at a multiple."""
    if last_name(call.func) != "range" or not isinstance(loop.target, ast.Name):
        return False
    step = call.args[2] if len(call.args) == 3 else None
    if isinstance(step, ast.Constant) and step.value == 1:
        return False
    for each in nodes_in(loop, ast.Slice):
        match each.lower:
            case ast.Name(id=name) if step is not None and name == loop.target.id:
                return True
            case ast.BinOp(op=ast.Mult(), left=left, right=right) if loop.target.id in map(last_name, (left, right)):
                return True
            case _:
                pass
    return False


def function_of(source: SourceFile, node: ast.AST) -> Any:
    """Return the innermost function around a node; the module if there is none."""
    return source.functions.get(id(node), source.tree)


def created_loader(source: SourceFile, loader: ast.expr) -> ast.Call | None:
    """Return the call of ``DataLoader`` that creates a loader; None unless there is exactly one for its name."""
    found = _created_loaders(source).get(last_name(loader), [])
    return found[0] if len(found) == 1 else None


def dataset_of(source: SourceFile, loader: ast.expr) -> ast.expr | None:
    """Return the dataset that the only call of ``DataLoader`` for a name gets."""
    created = created_loader(source, loader)
    given = [] if created is None else created.args[:1] or [e.value for e in created.keywords if e.arg == "dataset"]
    return given[0] if given else None


def has_one_batch(source: SourceFile, loop: BatchLoop) -> bool:
    """Return True for a loader whose batch size is a large number, or the number of samples."""
    call = created_loader(source, loop.loader)
    size = next((each.value for each in call.keywords if each.arg == "batch_size"), None) if call is not None else None
    if call is not None and size is None and len(call.args) > 1:
        size = call.args[1]
    return (
        (integer(size) or 0) >= 5000
        or isinstance(size, ast.Call)
        or (isinstance(size, ast.Subscript) and "shape" in ast.unparse(size))
    )


@lru_cache(maxsize=1)
def _created_loaders(source: SourceFile) -> dict[str, list[ast.Call]]:
    found: dict[str, list[ast.Call]] = {}
    for each in source.nodes_of(ast.Assign):
        value = with_bound_arguments(source, each.value) if isinstance(each.value, ast.Call) else None
        if value is not None and last_name(value.func).endswith("DataLoader"):
            for name in {last_name(target) for target in each.targets}:
                found.setdefault(name, []).append(value)
    return found


def with_bound_arguments(source: SourceFile, call: ast.Call) -> ast.Call:
    """Return a call with what ``functools.partial`` has bound to the variable that it calls; else the call itself."""
    values = assigned_in(source.tree, call.func.id) if isinstance(call.func, ast.Name) else []
    match values:
        case [ast.Call(func=func, args=[function, *bound], keywords=keywords)] if last_name(func) == "partial":
            given = {each.arg for each in call.keywords}
            kept = [each for each in keywords if each.arg not in given]
            return ast.copy_location(ast.Call(function, [*bound, *call.args], [*kept, *call.keywords]), call)
        case _:
            return call


def has_batches_of_one(source: SourceFile, loop: BatchLoop) -> bool:
    """Return True if each batch of a loop may have a single sample."""
    call = created_loader(source, loop.loader)
    if call is None:
        return bool(re.search(r"batch_size\s*=\s*1\b", source.text.source))
    size = next((each.value for each in call.keywords if each.arg == "batch_size"), None)
    size = size or (call.args[1] if len(call.args) > 1 else None)
    unpacked = any(each.arg in (None, "batch_sampler") for each in call.keywords)
    made = next((each.arguments for each in source.ops(OpKind.CREATE) if each.node is call), {})
    value = made.get("batch_size") or made.get("1")  # that of ``config["batch_size"]``
    is_one = isinstance(size, ast.Constant) and size.value == 1
    return not unpacked and (size is None or is_one or (value is not None and value.constant() == 1))


def assigned_in(function: Any, name: str) -> list[ast.expr]:
    """Return the values that a function or module assigns to a variable, except by ``+=``."""
    return _assigned_values(function).get(name, [])


@lru_cache(maxsize=1024)
def _assigned_values(function: Any) -> dict[str, list[ast.expr]]:
    found: dict[str, list[ast.expr]] = {}
    for target, value in single_assignments(function):
        found.setdefault(dotted_name(target), []).append(value)
    return found


def single_assignments(function: Any) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield each target of the assignments in a function or module with its value, as `assigned_pairs` does."""
    for each in nodes_in(function, ast.Assign):
        yield from assigned_pairs(each)


def assigned_pairs(statement: ast.Assign) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield each target of an assignment with its value; for ``a, b = c, d`` both pairs."""
    value = statement.value
    for target in statement.targets:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
            yield from zip(target.elts, value.elts, strict=True)
        else:
            yield target, value


def added_to_list(source: SourceFile, node: ast.Name) -> Iterator[ast.expr]:
    """Yield what a function adds to one of its lists."""
    for each in nodes_in(function_of(source, node), ast.Call, ast.AugAssign):
        match each:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="append" | "extend"), args=[value]):
                pass
            case ast.AugAssign(target=ast.Name(id=name), op=ast.Add(), value=value):
                pass
            case _:
                continue
        if name == node.id:
            yield value


def without_conversions(node: ast.expr) -> ast.expr:
    """Return the tensor of an expression such as ``float(loss.detach().item())``."""
    while True:
        match node:
            case ast.Call(func=ast.Attribute(value=inner, attr=attr)) if attr in _CONVERSIONS:
                node = inner
            case ast.Call(func=ast.Name(id="float" | "int"), args=[inner]):
                node = inner
            case (
                ast.Attribute(value=inner, attr="data")
                | ast.Subscript(value=ast.Attribute(value=inner, attr="data"), slice=ast.Constant(value=0))
            ):
                node = inner
            case _:
                return node


def is_label(node: ast.expr) -> bool:
    """Return True for a variable whose name says that it contains labels."""
    node = without_conversions(node)
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        node = without_conversions(node.func.value)  # labels.view_as(predicted)
    return isinstance(node, ast.Name | ast.Attribute) and _is_name_of_label(last_name(node))


@lru_cache(maxsize=4096)  # most names of a program occur many times
def _is_name_of_label(name: str) -> bool:
    return _LABEL.search(name) is not None


def compared_sides(node: ast.expr) -> tuple[ast.expr, ...]:
    """Return both sides of ``a == b``, ``a.eq(b)`` or ``torch.eq(a, b)``; () for other expressions."""
    match node:
        case ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]):
            return left, right
        case ast.Call(func=ast.Attribute(attr="eq"), args=[left, right]):
            return left, right
        case ast.Call(func=ast.Attribute(attr="eq", value=left), args=[right]):
            return left, right
        case _:
            return ()


def is_loss_call(source: SourceFile, node: ast.expr) -> bool:
    """Return True for a call that computes a loss, by its name or what it calls."""
    if not isinstance(node, ast.Call) or len(node.args) + len(node.keywords) < 2:
        return False
    name = source.qualified_name(node.func) or last_name(node.func)
    return bool(_LOSS_NAME.search(name.rpartition(".")[2]))


def is_loader(source: SourceFile, node: ast.expr) -> bool:
    """Return True for a data loader, by what creates it or by its name, also behind ``enumerate``."""
    node = without_calls(node, _TRANSPARENT)
    words = ast.unparse(node) if isinstance(node, ast.Subscript) else last_name(node)
    return bool(_LOADER_NAME.search(words)) or created_loader(source, node) is not None
