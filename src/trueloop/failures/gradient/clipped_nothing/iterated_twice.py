"""Finds second passes over a generator of parameters that are to change the gradients, but get no parameter."""

import ast
from collections.abc import Iterator, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final, NamedTuple

from trueloop.analysis.source_file import last_name
from trueloop.core.source_text import children, encloses, nodes_in, walk

_LAZY: Final = frozenset(("enumerate", "filter", "map", "iter", "zip"))
_CONSUMING: Final = frozenset(("list", "tuple", "set", "sum", "max", "min", "sorted", "dict", "len"))
_COMPREHENSIONS: Final = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
_SCOPES: Final = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef


class SecondPass(NamedTuple):
    """A loop or clipping call over a generator that is already exhausted."""

    scope: ast.AST
    node: Any
    name: str
    first: Any
    """The pass that exhausts the generator."""
    generator: ast.AST
    """What creates the generator: an argument of a call, or the value of a variable."""


def second_passes(scopes: Sequence[ast.AST], calls: Sequence[ast.Call]) -> Iterator[SecondPass]:
    """Yield each second pass over a generator in some functions and modules.

    Args:
        scopes: the functions and modules.
        calls: all calls of the program.
    """
    returns_list = any(getattr(each, "name", "") == "parameters" for each in scopes)  # not those of nn.Module
    names = [getattr(each, "name", "") for each in scopes]
    calls_of: dict[str, list[ast.Call]] = {}
    for call in calls:
        calls_of.setdefault(last_name(call.func), []).append(call)
    for scope in scopes:
        stores = [each for each in _own_nodes(scope) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)]
        bound = {
            each.targets[0].id: each.value
            for each in _own_nodes(scope)
            if isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Name)
        }
        made: dict[str, ast.AST] = {
            name: value
            for name, value in bound.items()
            if _is_generator(value, returns_list) and [each.id for each in stores].count(name) == 1
        }
        if isinstance(scope, ast.FunctionDef) and names.count(scope.name) == 1:
            stored = {each.id for each in stores}
            for name, value in _arguments(scope, calls_of.get(scope.name, [])):
                if name not in stored and _is_generator(value, returns_list):
                    made.setdefault(name, value)
        for name, value in made.items():
            first, *later = [*_passes(scope, name), None]
            second = next((each for each in later if each is not None and _changes_gradients(each)), None)
            if first is not None and second is not None and _always_runs(scope, first):
                yield SecondPass(scope, second, name, first, value)


@lru_cache(maxsize=1024)
def _own_nodes(scope: ast.AST) -> list[ast.AST]:
    """Return the nodes of a scope without those of functions in it."""
    found = list(children(scope))
    for each in found:
        if not isinstance(each, _SCOPES):
            found += children(each)
    return found


def _is_generator(value: ast.AST, returns_list: bool) -> bool:
    match value:
        case ast.GeneratorExp():
            return True
        case ast.Call(func=ast.Attribute(attr="parameters"), args=[], keywords=[]):
            return not returns_list
        case ast.Call(func=ast.Name(id="filter" | "map")):
            return True
        case _:
            return False


def _arguments(function: ast.FunctionDef, calls: Sequence[ast.Call]) -> Iterator[tuple[str, ast.expr]]:
    """Yield the parameters of a function with the values that its calls pass."""
    names = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
    for call in calls:
        is_method = bool(names) and names[0] in ("self", "cls") and isinstance(call.func, ast.Attribute)
        yield from zip(names[is_method:], call.args, strict=False)
        yield from ((each.arg, each.value) for each in call.keywords if each.arg)


def _passes(scope: ast.AST, name: str) -> list[ast.AST]:
    """Return the loops, comprehensions and calls of a scope that go through a variable, in the order of the text."""
    own = _own_nodes(scope)
    parents = {id(child): each for each in own for child in children(each)}
    found: list[Any] = []
    for node in own:
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load):
            user = _user(node, parents)
            if user is None:
                return []  # a use that may store the variable, or take some of its items
            found.append(user)
    found.sort(key=attrgetter("lineno", "col_offset"))
    return found


def _user(node: ast.AST, parents: dict[int, Any]) -> Any:
    """Return what goes through all items of a variable that is read; None for other uses."""
    parent = parents.get(id(node))
    while isinstance(parent, ast.Call) and node in parent.args and last_name(parent.func) in _LAZY:
        if last_name(parent.func) == "zip":
            return None
        node, parent = parent, parents.get(id(parent))
    if isinstance(parent, ast.For) and parent.iter is node:
        return None if any(isinstance(each, ast.Break | ast.Return) for each in walk(parent)) else parent
    if isinstance(parent, ast.comprehension) and parent.iter is node:
        owner = parents.get(id(parent))
        user = parents.get(id(owner))
        is_lazy = isinstance(owner, ast.GeneratorExp) and not isinstance(user, ast.Call)
        return None if is_lazy or last_name(getattr(user, "func", None)) in _LAZY | {"any", "all", "next"} else owner
    if isinstance(parent, ast.Call) and node in parent.args:
        called = last_name(parent.func)
        return parent if called in _CONSUMING or called.startswith("clip_grad") else None
    return None


def _always_runs(scope: ast.AST, node: ast.AST) -> bool:
    """Return True if a scope runs a node whenever it runs the code behind it."""
    return not any(
        encloses(each, node)
        for each in _own_nodes(scope)
        if isinstance(each, ast.If | ast.IfExp | ast.Try | ast.BoolOp)
    )


def _changes_gradients(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return last_name(node.func).startswith("clip_grad")
    return isinstance(node, ast.For) and any(each.attr == "grad" for each in nodes_in(node, ast.Attribute))
