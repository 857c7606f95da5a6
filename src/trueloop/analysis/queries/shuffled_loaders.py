"""Finds what yields batches in a random order, a ``DataLoader`` or a class of the program, and their labels."""

import ast
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, Final, NamedTuple

from trueloop.analysis.queries.batch_loops import assigned_in, assigned_pairs, function_of, with_bound_arguments
from trueloop.analysis.queries.class_instances import called_function, definitions
from trueloop.analysis.queries.possible_values import MAX_DEPTH, enclosing_nodes, possible_values, unpacked_call
from trueloop.analysis.source_file import SourceFile, last_name
from trueloop.core.source_text import dotted_name, encloses, nodes_in

PERMUTING: Final = frozenset(("randperm", "permutation", "permuted", "shuffle", "sample"))
LABEL_WORDS: Final = frozenset(("label", "labels", "target", "targets", "y", "ys"))
_ITERATED: Final = frozenset(("enumerate", "tqdm", "trange", "iter", "list", "track"))
_SPLITTING: Final = re.compile(r"split|fold|dataset$", re.IGNORECASE)
_SAME_ROWS: Final = frozenset((
    "array", "asarray", "as_tensor", "astype", "bool", "clone", "copy", "cpu", "cuda", "detach", "double", "flatten",
    "float", "from_numpy", "int", "list", "long", "numpy", "ravel", "reshape", "squeeze", "tensor", "to", "to_numpy",
    "tolist", "type", "unsqueeze", "view", "FloatTensor", "LongTensor", "Tensor",
))  # fmt: skip
_LIBRARIES: Final = frozenset(("np", "numpy", "torch", "pd", "pandas"))

Calls = tuple[ast.Call, ...]
"""The calls that lead to the function of an expression, outermost first."""
Traced = tuple[ast.expr, Calls]


class Loader(NamedTuple):
    """A call that creates something which yields batches."""

    call: ast.Call
    shuffles: bool
    dataset: Traced | None
    labels: tuple[Traced, ...]
    """The expressions from which it takes its labels, in the order of the samples."""
    attributes: frozenset[str]
    """Attributes of the loader itself that hold the labels in that order."""


def traced(
    source: SourceFile, node: ast.expr, calls: Calls, inner_of: Callable[[ast.expr], ast.expr | None]
) -> Iterator[Traced]:
    """Yield an expression and those whose value it may have; a parameter has the argument of the call that leads to it.

    Args:
        source: the file.
        node: the expression.
        calls: the calls that lead to its function.
        inner_of: returns the part of an expression that is followed, as ``loader`` for ``enumerate(loader)``, or None.
    """
    queue: list[tuple[ast.expr, Calls, int]] = [(node, calls, MAX_DEPTH + 2)]
    seen: set[int] = set()
    while queue:
        each, around, depth = queue.pop(0)
        if id(each) in seen:
            continue
        seen.add(id(each))
        yield each, around
        inner = inner_of(each)
        following = [(inner, around)] if inner is not None else values_of(source, each, around)
        queue += [(value, path, depth - 1) for value, path in following if depth]


def values_of(source: SourceFile, node: ast.expr, calls: Calls) -> list[Traced]:
    """Return the expressions whose value an expression may have, each with the calls that lead to it."""
    if isinstance(node, ast.Name) and calls:
        function = function_called(source, calls[-1])
        if function is not None and function is function_of(source, node) and not assigned_in(function, node.id):
            argument = argument_of(source, function, calls[-1], node.id)
            if argument is not None:
                return [(argument, calls[:-1])]
    if isinstance(node, ast.Call):
        function = function_called(source, node)
        returned = [each.value for each in nodes_in(function, ast.Return)] if function is not None else []
        values = [each for each in returned if each is not None and not isinstance(each, ast.Tuple)]
        return [(each, (*calls, node)) for each in values or possible_values(source, node)]
    call = unpacked_call(source, node) if isinstance(node, ast.Name) else None
    path = (*calls, call) if call is not None else calls
    return [(each, path) for each in possible_values(source, node)]


def function_called(source: SourceFile, call: ast.Call) -> Any:
    """Return the function or method of the program that a call runs, as the own method for ``self.f()``, or None."""
    found: list[Any] = []
    around: Any = source.parents.get(id(call))
    if isinstance(call.func, ast.Name):
        found = _defined_at_top_level(source).get(call.func.id, [])
    elif isinstance(call.func, ast.Attribute) and last_name(call.func.value) == "self":
        while around is not None and not isinstance(around, ast.ClassDef):
            around = source.parents.get(id(around))
        found = [each for each in getattr(around, "body", ()) if getattr(each, "name", "") == call.func.attr]
    is_function = len(found) == 1 and isinstance(found[0], ast.FunctionDef)
    return found[0] if is_function else called_function(source, call)


@lru_cache(maxsize=1)  # rules of one file follow each other
def _defined_at_top_level(source: SourceFile) -> dict[str, list[ast.stmt]]:
    """Return the functions and classes that are not in another one, by name."""
    found: dict[str, list[ast.stmt]] = {}
    for each in source.tree.body:
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.setdefault(each.name, []).append(each)
    return found


def argument_of(source: SourceFile, function: Any, call: ast.Call, name: str) -> ast.expr | None:
    """Return what a call passes as a parameter of a function or method, or the default value; None if unknown."""
    arguments = function.args
    names = [each.arg for each in (*arguments.posonlyargs, *arguments.args)]
    defaults: dict[str, Any] = dict(zip(names[::-1], arguments.defaults[::-1], strict=False))
    defaults |= dict(zip([each.arg for each in arguments.kwonlyargs], arguments.kw_defaults, strict=True))
    return passed_argument(source, function, call, name) or defaults.get(name)


def passed_argument(source: SourceFile, function: Any, call: ast.Call, name: str) -> ast.expr | None:
    """Return what a call itself passes as a parameter of a function or method; None if nothing or unknown."""
    names = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
    if isinstance(source.parents.get(id(function)), ast.ClassDef) and "staticmethod" not in map(
        last_name, function.decorator_list
    ):
        names = names[1:]
    return _passed(call, names, name)


def _passed(call: ast.Call, names: list[str], name: str) -> ast.expr | None:
    keyword = next((each.value for each in call.keywords if each.arg == name), None)
    given = dict(zip(names, call.args, strict=False))
    return keyword or (None if any(isinstance(each, ast.Starred) for each in call.args) else given.get(name))


def loaders_of(source: SourceFile, iterable: ast.expr, calls: Calls = ()) -> list[Loader]:
    """Return what a loop may go through that yields batches, followed through variables, attributes and arguments."""
    found = [_loader(source, e, path) for e, path in traced(source, iterable, calls, _iterated) if type(e) is ast.Call]
    return [each for each in found if each is not None]


@lru_cache(maxsize=1)  # rules of one file follow each other
def may_shuffle(source: SourceFile) -> bool:
    """Return False if nothing in the program can yield batches in a random order."""
    given = [each.value for call in source.all_calls for each in call.keywords if each.arg == "shuffle"]
    if any(not isinstance(each, ast.Constant) or each.value is True for each in given):
        return True
    classes, functions, calls, _ = definitions(source)
    if "partial" in calls or any(len(call.args) > 2 for call in calls.get("DataLoader", ())):
        return True
    own: list[ast.AST] = [each for each in classes.values() if _is_iterable(each)]
    own += [each for each in functions.values() if nodes_in(each, ast.Yield)]
    return any(last_name(call.func) in PERMUTING for each in own for call in nodes_in(each, ast.Call))


def _is_iterable(definition: ast.ClassDef) -> bool:
    return any(getattr(each, "name", "") in ("__iter__", "__next__") for each in definition.body)


def _iterated(node: ast.expr) -> ast.expr | None:
    is_passing = isinstance(node, ast.Call) and last_name(node.func) in _ITERATED and bool(node.args)
    return node.args[0] if is_passing else None  # type: ignore[attr-defined]


def _loader(source: SourceFile, call: ast.Call, calls: Calls) -> Loader | None:
    """Return the loader that a call creates; None for other calls."""
    call = with_bound_arguments(source, call)
    name = last_name(call.func)
    definition: Any = definitions(source).classes.get(name)
    if definition is None:
        definition = definitions(source).functions.get(name)
        if definition is not None and not nodes_in(definition, ast.Yield):
            return None
    elif not _is_iterable(definition):
        definition = None
    if definition is not None:
        return _own_loader(source, definition, call, calls)
    shuffle = next((each.value for each in call.keywords if each.arg == "shuffle"), None)
    if shuffle is None and name == "DataLoader" and len(call.args) > 2:
        shuffle = call.args[2]
    first = next((each.value for each in call.keywords if each.arg == "dataset"), None)
    first = call.args[0] if call.args else first
    if first is None or _SPLITTING.search(name) or (shuffle is None and not name.endswith("Loader")):
        return None
    labels = labels_of_dataset(source, first, calls)
    if not name.endswith("DataLoader"):
        labels += [(each, calls) for each in call.args[1:2] if isinstance(each, ast.Name | ast.Attribute)]
    shuffles = shuffle is not None and _truth(source, shuffle, calls) is True
    return Loader(call, shuffles, (first, calls), tuple(labels), frozenset())


def _own_loader(source: SourceFile, definition: Any, call: ast.Call, calls: Calls) -> Loader:
    """Return the loader that a call of a class or generator of the program creates."""
    labels, attribute = _second_of(source, definition, call, calls)
    first = [(each, calls) for each in call.args[:1]]
    if not labels and first and isinstance(first[0][0], ast.Name | ast.Attribute | ast.Call):
        labels = labels_of_dataset(source, *first[0])
    shuffles = any(_runs(source, definition, each, call, calls) for each in _permuting(source, definition))
    attributes = frozenset((attribute,)) if attribute else frozenset[str]()
    return Loader(call, shuffles, first[0] if first else None, tuple(labels), attributes)


def labels_of_dataset(source: SourceFile, dataset: ast.expr, calls: Calls) -> list[Traced]:
    """Return the expressions from which a dataset has its labels, as ``y`` for ``TensorDataset(x, y)``."""
    for each, path in traced(source, dataset, calls, _iterated):
        if not isinstance(each, ast.Call):
            continue
        if last_name(each.func) in ("TensorDataset", "zip") and len(each.args) > 1:
            return [(label, path) for label in each.args[1:]]
        definition = definitions(source).classes.get(last_name(each.func))
        if definition is not None:
            return _second_of(source, definition, each, path)[0]
    return []


def _second_of(source: SourceFile, definition: Any, call: ast.Call, calls: Calls) -> tuple[list[Traced], str]:
    """Return the argument of a call that holds what a class or generator yields second, and its attribute."""
    for each in nodes_in(definition, ast.Yield, ast.Return):
        label = _label_in(each.value)
        owner = function_of(source, each)
        if label is None:
            continue
        if isinstance(each, ast.Return) and getattr(owner, "name", "") not in ("__getitem__", "__next__"):
            continue
        for part, _ in traced(source, label, (), _inner_of_rows):
            if not isinstance(part, ast.Name | ast.Attribute):
                continue
            argument = _argument_in(source, definition, part, call)
            if argument is not None:
                return [(argument, calls)], last_name(part) if isinstance(part, ast.Attribute) else ""
    return [], ""


def _label_in(value: ast.expr | None) -> ast.expr | None:
    """Return the label in ``x, y`` or ``{"x": x, "label": y}``; None for other values."""
    match value:
        case ast.Tuple(elts=[_, label]):
            return label
        case ast.Dict(keys=keys, values=values):
            named = [v for k, v in zip(keys, values, strict=True) if getattr(k, "value", "") in LABEL_WORDS]
            return named[0] if len(named) == 1 else None
        case _:
            return None


def _inner_of_rows(node: ast.expr) -> ast.expr | None:
    return node.value if isinstance(node, ast.Subscript) else same_rows(node)


def _argument_in(source: SourceFile, definition: Any, node: ast.expr, call: ast.Call) -> ast.expr | None:
    """Return what a call of a class or generator passes as a parameter or an attribute that holds a parameter."""
    if isinstance(definition, ast.FunctionDef):
        is_given = isinstance(node, ast.Name) and not assigned_in(definition, node.id)
        return argument_of(source, definition, call, last_name(node)) if is_given else None
    if not isinstance(node, ast.Attribute):
        return None
    init = next((e for e in definition.body if isinstance(e, ast.FunctionDef) and e.name == "__init__"), None)
    if init is None:
        fields = [last_name(each.target) for each in definition.body if isinstance(each, ast.AnnAssign)]
        return _passed(call, fields, node.attr)
    stored = [value for each in nodes_in(definition, ast.Assign) for target, value in assigned_pairs(each)
              if getattr(target, "attr", "") == node.attr]  # fmt: skip
    value = stored[0] if len(stored) == 1 else None
    while value is not None and (inner := same_rows(value)) is not None:
        value = inner
    if isinstance(value, ast.Name) and not assigned_in(init, value.id):
        return argument_of(source, init, call, value.id)
    return value if isinstance(value, ast.Constant) else None


def _permuting(source: SourceFile, definition: Any) -> Iterator[ast.Call]:
    """Yield the calls in a class or generator that put the samples in a random order, except in place."""
    for each in nodes_in(definition, ast.Call):
        name = last_name(each.func)
        if name not in PERMUTING or (name == "sample" and last_name(getattr(each.func, "value", None)) != "random"):
            continue
        is_own = bool(each.args) and isinstance(each.args[0], ast.Attribute | ast.Name)
        values = possible_values(source, each.args[0]) if is_own else []
        parameters = {e.arg for e in nodes_in(definition, ast.arg)}
        if name != "shuffle" or (values and not any(last_name(value) in parameters for value in values)):
            yield each


def _runs(source: SourceFile, definition: Any, node: ast.Call, call: ast.Call, calls: Calls) -> bool:
    """Return True if a node in a class or generator certainly runs after a call of it with these arguments."""
    child: ast.AST = node
    for each in enclosing_nodes(source, node):
        if isinstance(each, ast.If | ast.IfExp) and not encloses(each.test, node):
            orelse = each.orelse if isinstance(each.orelse, list) else [each.orelse]
            expected = not any(encloses(e, child) for e in orelse)
            test, is_not = each.test, False
            if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
                test, is_not = test.operand, True
            argument = _argument_in(source, definition, test, call)
            truth = _truth(source, argument, calls) if argument is not None else None
            if truth is None or (truth is not is_not) is not expected:
                return False
    return True


def _truth(source: SourceFile, node: ast.expr, calls: Calls) -> bool | None:
    """Return the value of a flag; None if it is unknown or has several values."""
    ends = [e for e, path in traced(source, node, calls, lambda _: None) if not values_of(source, e, path)]
    values = {e.value if isinstance(e, ast.Constant) and isinstance(e.value, bool) else None for e in ends}
    return values.pop() if len(values) == 1 else None


def same_rows(node: ast.expr) -> ast.expr | None:
    """Return the argument of a conversion that keeps the order of the rows, as ``y`` for ``y.numpy()``; else None."""
    match node:
        case ast.Attribute(value=inner, attr="values" | "data") if last_name(inner) != "self":
            return inner
        case ast.Call(func=func, args=args) if last_name(func) in _SAME_ROWS:
            is_method = isinstance(func, ast.Attribute) and last_name(func.value) not in _LIBRARIES
            return func.value if is_method else args[0] if args else None  # type: ignore[attr-defined]
        case _:
            return None


def value_keys(source: SourceFile, node: ast.expr, calls: Calls = ()) -> set[tuple[str, int]]:
    """Return keys of the values that an expression may have: two expressions with a common key have the same rows."""
    found: set[tuple[str, int]] = set()
    for each, _ in traced(source, node, calls, same_rows):
        if not isinstance(each, ast.Constant):
            found.add(("", id(each)))
        if isinstance(each, ast.Name | ast.Attribute | ast.Subscript):
            found |= text_key(source, each, ast.unparse(each))
    return found


def text_key(source: SourceFile, node: ast.expr, text: str) -> set[tuple[str, int]]:
    """Return the key of a text in the function, class or module of a node's variable; none if it is assigned twice."""
    root: Any = node
    while isinstance(root, ast.Attribute | ast.Subscript):
        root = root.value
    if not isinstance(root, ast.Name):
        return set()
    scope: Any = function_of(source, node)
    if root.id == "self":
        scope = source.parents.get(id(scope), scope)
    elif not isinstance(scope, ast.Module):
        own = {each.arg for each in nodes_in(scope.args, ast.arg)}
        own |= {each.id for each in nodes_in(scope, ast.Name) if isinstance(each.ctx, ast.Store)}
        scope = scope if root.id in own else source.tree
    names = {dotted_name(each) for each in nodes_in(node, ast.Name, ast.Attribute)} - {"", "self"}
    stores = [e for e in nodes_in(scope, ast.Name, ast.Attribute) if isinstance(e.ctx, ast.Store)]
    parameters = {each.arg for each in nodes_in(getattr(scope, "args", ast.Pass()), ast.arg)}
    for name in names:
        if sum(dotted_name(each) == name for each in stores) + (name in parameters) > 1:
            return set()
    return {(text, id(scope))}
