"""Finds the variables that hold an instance of a class, all uses of it, and the loops around a use."""

import ast
from functools import lru_cache
from typing import Any, Final, NamedTuple

from trueloop.analysis.queries.batch_loops import assigned_pairs, function_of
from trueloop.analysis.source_file import SourceFile, last_name
from trueloop.core.source_text import nodes_in

_FUNCTIONS: Final = ast.FunctionDef | ast.AsyncFunctionDef
_MAX_DEPTH: Final = 5


class Instance(NamedTuple):
    """A variable or attribute to which a call of a class is assigned."""

    target: ast.expr
    call: ast.Call
    """The call of the class, without a ``.to(device)`` around it."""


class Definitions(NamedTuple):
    """The classes and functions of a program that have a name of their own."""

    classes: dict[str, ast.ClassDef]
    functions: dict[str, ast.FunctionDef]
    calls: dict[str, list[ast.Call]]
    """All calls, by the last part of the called name."""
    attributes: dict[str, list[ast.Attribute]]
    """All attributes, by name."""


@lru_cache(maxsize=1)  # rules of one file follow each other
def definitions(source: SourceFile) -> Definitions:
    """Return the classes and functions of a program, except those that share their name, and all calls."""
    classes: dict[str, list[Any]] = {}
    functions: dict[str, list[Any]] = {}
    for each in source.nodes_of(ast.ClassDef, ast.FunctionDef):
        if isinstance(each, ast.ClassDef):
            classes.setdefault(each.name, []).append(each)
        else:
            functions.setdefault(each.name, []).append(each)
    calls: dict[str, list[ast.Call]] = {}
    for call in source.all_calls:
        calls.setdefault(last_name(call.func), []).append(call)
    attributes: dict[str, list[ast.Attribute]] = {}
    for each in source.nodes_of(ast.Attribute):
        attributes.setdefault(each.attr, []).append(each)
    return Definitions(
        {name: found[0] for name, found in classes.items() if len(found) == 1},
        {name: found[0] for name, found in functions.items() if len(found) == 1},
        calls,
        attributes,
    )


@lru_cache(maxsize=1)
def instances(source: SourceFile) -> tuple[Instance, ...]:
    """Return the variables and attributes that are assigned the result of a call."""
    found: list[Instance] = []
    for assignment in source.nodes_of(ast.Assign):
        for target, value in assigned_pairs(assignment):
            match value:
                case ast.Call(func=ast.Attribute(attr="to", value=ast.Call() as call)) | (ast.Call() as call):
                    if isinstance(target, ast.Name | ast.Attribute):
                        found.append(Instance(target, call))
                case _:
                    pass
    return tuple(found)


def uses(source: SourceFile, target: ast.expr, depth: int = 0) -> list[ast.expr] | None:
    """Return the expressions that read a variable, also where it is a parameter; None if it is assigned elsewhere.

    Args:
        source: the file.
        target: the only assignment of the variable or attribute.
        depth: number of parameters through which the variable was passed.
    """
    found: list[ast.expr] = []
    for each in _references(source, target):
        if isinstance(each.ctx, ast.Load):
            passed_on = _passed_on(source, each) if depth < _MAX_DEPTH else None
            inner = [each] if passed_on is None else uses(source, passed_on, depth + 1)
            if inner is None:
                return None
            found += inner
        elif each is not target:
            return None
    return found


def _references(source: SourceFile, target: Any) -> list[Any]:
    """Return the nodes that read or assign the variable, parameter or attribute of a node."""
    if isinstance(target, ast.Attribute):
        return list(definitions(source).attributes.get(target.attr, ()))
    name = target.arg if isinstance(target, ast.arg) else target.id
    owner = function_of(source, target)
    named = [each for each in nodes_in(owner, ast.Name) if each.id == name]
    return [each for each in named if _scope(source, each, name) is owner]


def _scope(source: SourceFile, node: ast.AST, name: str) -> Any:
    """Return the function to which a variable belongs, or the module."""
    function = function_of(source, node)
    while not isinstance(function, ast.Module):
        if name not in _shared_names(function) and (name in _parameters(function) or name in _assigned(function)):
            return function
        function = function_of(source, function)
    return function


def _shared_names(function: ast.AST) -> set[str]:
    return {name for each in nodes_in(function, ast.Global, ast.Nonlocal) for name in each.names}


def _assigned(function: ast.AST) -> set[str]:
    return {each.id for each in nodes_in(function, ast.Name) if isinstance(each.ctx, ast.Store)}


def _parameters(function: Any) -> dict[str, ast.arg]:
    return {each.arg: each for each in nodes_in(function.args, ast.arg)}


def _passed_on(source: SourceFile, node: ast.expr) -> Any:
    """Return the parameter, variable or attribute that gets the value of a node; None if there is none."""
    parent: Any = source.parents.get(id(node))
    keyword = parent.arg if isinstance(parent, ast.keyword) else ""
    call = source.parents.get(id(parent)) if keyword else parent
    if isinstance(parent, ast.Assign) and parent.value is node and len(parent.targets) == 1:
        target = parent.targets[0]
        return target if isinstance(target, ast.Name | ast.Attribute) else None
    if not isinstance(call, ast.Call) or call.func is node:
        return None
    function = called_function(source, call)
    if function is None:
        return None
    parameters = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
    if isinstance(source.parents.get(id(function)), ast.ClassDef):
        parameters = parameters[1:]
    position = next((number for number, each in enumerate(call.args) if each is node), len(parameters))
    name = keyword or (parameters[position] if position < len(parameters) else "")
    return _parameters(function).get(name)


def called_function(source: SourceFile, call: ast.Call) -> ast.FunctionDef | None:
    """Return the function of the program that a call runs, or the ``__init__`` of a class; None if it is unknown."""
    known, name = definitions(source), last_name(call.func)
    if name in known.classes:
        return next(
            (e for e in known.classes[name].body if isinstance(e, ast.FunctionDef) and e.name == "__init__"), None
        )
    return known.functions.get(name)


def only_call(source: SourceFile, function: Any) -> ast.Call | None:
    """Return the call of a function of the program that is called in one place; None for others and for a module.

    A call with too few arguments is one of another method: ``model.train()`` does not run ``def train(self, seed)``.
    """
    known, name = definitions(source), getattr(function, "name", "")
    if not name or known.functions.get(name) is not function:
        return None
    is_method = isinstance(source.parents.get(id(function)), ast.ClassDef)
    required = len(function.args.args) - len(function.args.defaults) - is_method
    calls = [each for each in known.calls.get(name, []) if len(each.args) + len(each.keywords) >= required]
    return calls[0] if len(calls) == 1 else None


def enclosing_loops(source: SourceFile, node: ast.AST) -> list[tuple[ast.For | ast.While, ...]]:
    """Return the loops around a node, innermost first, for each chain of calls that leads to it; equal chains once."""
    chains = enclosing_blocks(source, node)
    return list(dict.fromkeys(tuple(each for each in chain if not isinstance(each, ast.If)) for chain in chains))


def enclosing_blocks(
    source: SourceFile, node: ast.AST, depth: int = 0
) -> list[tuple[ast.For | ast.While | ast.If, ...]]:
    """Return the loops and conditions around a node, innermost first, for each chain of calls that leads to it.

    Equal chains are returned once.
    """
    blocks: list[ast.For | ast.While | ast.If] = []
    child: ast.AST = node
    parent: Any = source.parents.get(id(node))
    while parent is not None and not isinstance(parent, _FUNCTIONS):
        is_run_before = isinstance(parent, ast.For) and child is parent.iter
        is_run_before = is_run_before or (isinstance(parent, ast.If) and child is parent.test)
        if isinstance(parent, ast.While | ast.For | ast.If) and not is_run_before:
            blocks.append(parent)
        child, parent = parent, source.parents.get(id(parent))
    own = tuple(blocks)
    if parent is None or depth >= _MAX_DEPTH:
        return [own]
    around: Any = source.parents.get(id(parent))
    name = around.name if parent.name == "__init__" and isinstance(around, ast.ClassDef) else parent.name
    outer = dict.fromkeys(
        each
        for call in definitions(source).calls.get(name, [])[:8]
        for each in enclosing_blocks(source, call, depth + 1)
    )
    return [(*own, *each) for each in outer] or [own]
