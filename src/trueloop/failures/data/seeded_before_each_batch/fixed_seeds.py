"""Tells whether a seed is the same in every step of a training."""

import ast
import re
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import assigned_in, function_of
from trueloop.analysis.queries.class_instances import definitions
from trueloop.analysis.queries.loops import assigned_names
from trueloop.analysis.queries.shuffled_loaders import argument_of, passed_argument
from trueloop.analysis.source_file import SourceFile, last_name
from trueloop.core.source_text import nodes_in
from trueloop.failures.data.seeded_before_each_batch.step_code import StepCode

_COUNTS: Final = re.compile(r"epoch|step|iter|idx|index|count|round|rank|worker|time|tick", re.IGNORECASE)
_CONSTRUCTORS: Final = frozenset(("__init__", "__post_init__"))
_MAX_DEPTH: Final = 6


def is_fixed(source: SourceFile, code: StepCode, node: Any, depth: int = _MAX_DEPTH) -> bool:
    """Return True for a number, a setting, or a sum of such that no step changes."""
    parts: list[Any] = []
    match node if depth else None:
        case ast.Constant(value=value):
            return isinstance(value, int)
        case ast.BinOp(left=left, right=right):
            parts = [left, right]
        case ast.Call(func=ast.Name(id="int"), args=[inner]):
            parts = [inner]
        case ast.Attribute(value=owner, attr=attr) if not _COUNTS.search(attr) and _keeps(source, attr):
            return _is_fixed_owner(source, code, owner, depth)
        case ast.Subscript(value=owner, slice=ast.Constant(value=str(key))) if not _COUNTS.search(key):
            return _is_fixed_owner(source, code, owner, depth)
        case ast.Name():
            return _is_fixed_variable(source, code, node, depth)
        case _:
            pass
    return bool(parts) and all(is_fixed(source, code, each, depth - 1) for each in parts)


def _keeps(source: SourceFile, attribute: str) -> bool:
    """Return True if only constructors assign an attribute."""
    stored = [e for e in source.nodes_of(ast.Attribute) if e.attr == attribute and not isinstance(e.ctx, ast.Load)]
    return all(getattr(function_of(source, each), "name", "__init__") in _CONSTRUCTORS for each in stored)


def _is_fixed_owner(source: SourceFile, code: StepCode, owner: ast.expr, depth: int) -> bool:
    """Return True for an object with settings that is the same in all steps: ``self``, ``args``, ``self.config``."""
    match owner:
        case ast.Attribute(value=outer, attr=attr):
            return _keeps(source, attr) and _is_fixed_owner(source, code, outer, depth)
        case ast.Name(id=name):
            argument = _argument(source, code, function_of(source, owner), name)
            if isinstance(argument, ast.Name | ast.Attribute) and depth:
                return _is_fixed_owner(source, code, argument, depth - 1)
            return name not in assigned_names(code.loop)
        case _:
            return False


def _is_fixed_variable(source: SourceFile, code: StepCode, node: ast.Name, depth: int) -> bool:
    function = function_of(source, node)
    if _is_parameter(function, node.id):
        is_changed = bool(assigned_in(function, node.id))
        argument = _argument(source, code, function, node.id)
        is_unknown = argument is None and id(function) not in code.calls and not isinstance(code.loop, ast.FunctionDef)
        if argument is None and is_unknown:
            return node.id not in assigned_names(code.loop) and not is_changed
        return not is_changed and argument is not None and is_fixed(source, code, argument, depth - 1)
    if node.id in assigned_names(code.loop):
        return _is_fixed_in_loop(source, code, node, depth)
    outer = _function_with_parameter(source, function, node.id)
    if outer is not None:  # the parameter of a function that returns this one
        calls = definitions(source).calls.get(outer.name, [])
        return bool(calls) and not any(each in nodes_in(code.loop, ast.Call) for each in calls)
    own = assigned_in(function, node.id)
    if own and function is not source.tree:
        is_loop_function = any(each is code.loop for each in nodes_in(function, ast.For, ast.While))
        return is_loop_function or (len(own) == 1 and is_fixed(source, code, own[0], depth - 1))
    values = assigned_in(source.tree, node.id)
    changes = [e for e in source.nodes_of(ast.AugAssign) if last_name(e.target) == node.id]
    looped = any(node.id in assigned_names(each) for each in source.nodes_of(ast.For, ast.While))
    return len(values) == 1 and not changes and not looped and is_fixed(source, code, values[0], depth - 1)


def _is_fixed_in_loop(source: SourceFile, code: StepCode, node: ast.Name, depth: int) -> bool:
    """Return True for a variable that an iteration assigns once, from a fixed number."""
    values = assigned_in(code.loop, node.id) if hasattr(code.loop, "body") else []
    stored = [e for e in nodes_in(code.loop, ast.Name) if e.id == node.id and not isinstance(e.ctx, ast.Load)]
    return len(values) == len(stored) == 1 and is_fixed(source, code, values[0], depth - 1)


def _is_parameter(function: Any, name: str) -> bool:
    arguments = getattr(function, "args", None)
    return arguments is not None and any(each.arg == name for each in nodes_in(arguments, ast.arg))


def _function_with_parameter(source: SourceFile, function: Any, name: str) -> Any:
    """Return the function around a function that has a parameter of this name; None if there is none."""
    outer = function_of(source, function) if not isinstance(function, ast.Module) else function
    while not isinstance(outer, ast.Module):
        if _is_parameter(outer, name):
            return outer
        outer = function_of(source, outer)
    return None


def _argument(source: SourceFile, code: StepCode, function: Any, name: str) -> ast.expr | None:
    """Return what the call that leads to the code passes as a parameter, or its default; None if it is unknown."""
    call = code.calls.get(id(function))
    if call is None or not _is_parameter(function, name):
        return None
    is_unpacked = any(each.arg is None for each in call.keywords) or any(isinstance(e, ast.Starred) for e in call.args)
    return (passed_argument if is_unpacked else argument_of)(source, function, call, name)
