"""Finds the modules on which each iteration of a loop registers a hook, also in functions that the loop calls."""

import ast
import re
from collections.abc import Iterator, Set
from typing import Any, Final

from trueloop.analysis.loop_invariance import assigned_names, names_in
from trueloop.analysis.operations import Loop, Op
from trueloop.analysis.queries.batch_loops import assigned_in, function_of
from trueloop.analysis.queries.class_instances import definitions, enclosing_loops
from trueloop.analysis.queries.loop_variables import stored_names
from trueloop.analysis.queries.loops import is_inside
from trueloop.analysis.queries.possible_values import enclosing_nodes, parameters_of
from trueloop.analysis.source_file import SourceFile
from trueloop.core.source_text import nodes_in

_LOOKUPS: Final = frozenset(
    ("getattr", "dict", "get_submodule", "named_modules", "list", "children", "next", "modules")
)
_CALLBACK: Final = re.compile(r"(^|_)(epoch|batch|step|iteration|iter)s?_?(start|begin|end|stop)|"
                               r"(before|after|begin|start|end)_(\w+_)?(epoch|batch|step|iter)")  # fmt: skip
"""Methods of callbacks that trainers call again and again."""
_MAX_DEPTH: Final = 6


def discards_handle(source: SourceFile, registration: Op) -> bool:
    """Return True if the handle of a hook is not stored, or stored where the program never removes it."""
    return _discards(source, registration.statement, registration.node)


def _discards(source: SourceFile, statement: Any, call: Any) -> bool:
    if isinstance(statement, ast.Expr) and statement.value is call:
        return True
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)], value=value) if value is call:
            read = [e for e in nodes_in(function_of(source, call), ast.Name) if e.id == name]
            return not any(isinstance(each.ctx, ast.Load) for each in read) and name != "_hook"
        case ast.Assign(targets=[ast.Attribute()], value=value) if value is call:
            return not _removes_any(source)
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr="append"), args=[value])) if value is call:
            return not _removes_any(source)
        case _:
            return False


def _removes_any(source: SourceFile) -> bool:
    """Return True if the program calls ``handle.remove()``, or may pass the handle on."""
    return any(not each.args and not each.keywords for each in definitions(source).calls.get("remove", ()))


def registers_on_same_module(source: SourceFile, registration: Op, loop: Loop) -> bool:
    """Return True if the module of a registration comes from a variable that a loop around its calls never assigns."""
    call = registration.node
    expression: Any = call.func.value if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) else None
    changing = assigned_names(loop.node)
    functions = list(registration.functions)
    for number in range(len(functions) - 1, -1, -1):
        function, outer_call = functions[number], registration.calls[number]
        if is_inside(loop.node, function):
            break
        root = _root(expression, function)
        if not root or not isinstance(outer_call, ast.Call):
            return False
        expression = _argument(root, function, outer_call)
        if expression is None:
            return root not in stored_names(function) and root not in changing  # a variable of the module
        if is_inside(outer_call, loop.node):
            break
    root = _root(expression, function_of(source, loop.node))
    return bool(root) and root not in changing


def in_callbacks(source: SourceFile, methods: Set[str]) -> Iterator[ast.Call]:
    """Yield each registration in a method that a trainer calls at every epoch or batch, on a module that lasts."""
    for name in methods:
        for call in definitions(source).calls.get(name, ()):
            function = function_of(source, call)
            is_method = isinstance(source.parents.get(id(function)), ast.ClassDef)
            if not is_method or not _CALLBACK.search(function.name) or not _is_always_run(source, function, call):
                continue
            callers = definitions(source).calls.get(function.name, [])
            in_loops = all(any(enclosing_loops(source, each)) for each in callers if not _is_of_base(each))
            if in_loops and _is_lasting(function, call) and _discards(source, source.statement_of(call), call):
                yield call


def _is_of_base(call: ast.Call) -> bool:
    return "super()" in ast.unparse(call.func)


def _is_always_run(source: SourceFile, function: ast.FunctionDef, call: ast.Call) -> bool:
    """Return True if no condition but one on the module, such as its type, precedes a registration."""
    looped = {name for each in nodes_in(function, ast.For) for name in assigned_names(each.target)}
    around = {id(each) for each in enclosing_nodes(source, call)}
    for each in nodes_in(function, ast.If, ast.IfExp, ast.Try):
        leaves = any(nodes_in(part, ast.Return) for part in getattr(each, "body", []) if isinstance(part, ast.stmt))
        is_about_module = not isinstance(each, ast.Try) and bool(names_in(each.test) & looped)
        if (id(each) in around or leaves) and not is_about_module:
            return False
    return True


def _is_lasting(function: ast.FunctionDef, call: ast.Call) -> bool:
    """Return True for a module of an argument, or of the object, that the method does not create."""
    node: Any = call.func.value if isinstance(call.func, ast.Attribute) else None
    root = _root(node, function)
    for loop in nodes_in(function, ast.For):
        if root in assigned_names(loop.target):
            root = _root(loop.iter, function)
    return root in {each.arg for each in parameters_of(function)}


def _root(node: Any, function: Any) -> str:
    """Return the variable of which a module is a part: "model" for ``model.layers[-1]``; "" if it is not certain."""
    for _ in range(_MAX_DEPTH * 2):
        match node:
            case ast.Attribute(value=inner):
                node = inner
            case ast.Subscript(value=inner, slice=ast.Constant() | ast.UnaryOp()):  # not networks[number]
                node = inner
            case ast.Call(func=ast.Name(id=name), args=[inner, *_]) if name in _LOOKUPS:
                node = inner
            case ast.Call(func=ast.Attribute(attr=name, value=inner)) if name in _LOOKUPS:
                node = inner
            case ast.Name(id=name):
                values = assigned_in(function, name) if isinstance(function, ast.FunctionDef) else []
                if len(values) != 1 or isinstance(values[0], ast.Name):
                    return name if not values else ""
                node = values[0]
            case _:
                return ""
    return ""


def _argument(root: str, function: Any, call: ast.Call) -> ast.expr | None:
    """Return what a call passes as a parameter of a function; None if the name is no parameter."""
    names = [each.arg for each in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]
    if root not in names:
        return None
    position = names.index(root)
    if names[:1] == ["self"]:
        if position == 0:
            return call.func.value if isinstance(call.func, ast.Attribute) else call
        position -= 1
    named = [each.value for each in call.keywords if each.arg == root]
    given = [*named, *call.args[position : position + 1]]
    return given[0] if given and not isinstance(given[0], ast.Starred) else call
