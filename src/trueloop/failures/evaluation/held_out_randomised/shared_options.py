"""Finds held-out data that is made with the same augmentation as the training data."""

import ast
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from trueloop.analysis.queries.batch_loops import assigned_in, function_of
from trueloop.analysis.queries.class_instances import called_function, definitions
from trueloop.analysis.queries.data_parts import part_of_call
from trueloop.analysis.queries.possible_values import origins
from trueloop.analysis.queries.shuffled_loaders import argument_of
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import nodes_in
from trueloop.failures.evaluation.held_out_randomised.always_random import always_random
from trueloop.failures.evaluation.held_out_randomised.augmentation_switches import Switch, is_random_transform, switches

_OTHER_USE: Final = re.compile(r"\btta\b|tta_|_tta|simclr|contrastive|byol|two_?crop|n_views|denois", re.IGNORECASE)
_MAX_DEPTH: Final = 3
_MAX_CALLS: Final = 8


class _Use(NamedTuple):
    """A call that makes the data of one part."""

    part: str
    """"train" or "held out"."""
    node: ast.AST
    value: str
    """What it passes as the switch: "on", "off", or the text of a setting."""


def shared_options(source: SourceFile) -> Iterator[Hit]:
    """Yield each call that makes held-out data and turns the random changes of the training data on."""
    return source.hits_unless(_OTHER_USE, _shared_options(source))


def _shared_options(source: SourceFile) -> Iterator[Hit]:
    calls = definitions(source).calls
    for switch in switches(source):
        if _is_switched_later(source, switch.parameter):
            continue
        uses = [use for call in calls.get(switch.name, [])[:_MAX_CALLS] for use in _uses(source, switch, call)]
        yield from _hits(uses, f"`{switch.parameter}`", switch.draws)
    for each in always_random(source):
        uses = [use for call in calls.get(each.name, [])[:_MAX_CALLS] for use in _uses(source, each, call)]
        yield from _hits(uses, "the random changes", each.draws)
    transformed = [
        _Use(part, call, _transform(source, keyword.value))
        for call in source.all_calls
        for keyword in call.keywords
        if keyword.arg in ("transform", "transforms") and (part := part_of_call(source, call))
    ]
    yield from _hits(transformed, "the random transform", None)


def _transform(source: SourceFile, value: ast.expr) -> str:
    """Return "off" for a transform that changes nothing at random, and else "on", or the call that makes it."""
    found = list(origins(source, value))
    made = next(
        (e for e in found if isinstance(e, ast.Call) and (e.args or e.keywords) and called_function(source, e)), None
    )
    if not found or not is_random_transform(found[-1]):
        return "off"
    return "on" if made is None else ast.unparse(made)


def _hits(uses: list[_Use], what: str, draws: ast.AST | None) -> Iterator[Hit]:
    trained = [each for each in uses if each.part == "train" and each.value != "off"]
    plain = {id(each.node) for each in uses if each.part == "held out" and each.value == "off"}
    if any(each.part == "train" and each.value == "off" for each in uses):
        return  # the switch does something else
    for each in uses:
        is_same = any(other.value == each.value for other in trained)
        if each.part != "held out" or each.value == "off" or not is_same or id(each.node) in plain:
            continue
        related = [(draws, "changed at random here")] if draws is not None else []
        yield Hit(
            message=f"The held-out samples are made with {what} of the training samples, so they are changed at random "
            "in each pass: the score is too low, and another one each time.",
            node=each.node,
            related=((trained[0].node, "the training samples"), *related)
            if trained[0].node is not each.node
            else tuple(related),
        )


def _is_switched_later(source: SourceFile, name: str) -> bool:
    """Return True if a program sets the flag of an object after its creation."""
    stored = [each for each in source.nodes_of(ast.Attribute) if each.attr.strip("_") == name.strip("_")]
    return any(
        not isinstance(each.ctx, ast.Load) and getattr(function_of(source, each), "name", "") != "__init__"
        for each in stored
    )


def _uses(
    source: SourceFile,
    switch: Switch,
    call: ast.Call,
    outer: Mapping[int, ast.Call] | None = None,
    made: ast.Call | None = None,
) -> Iterator[_Use]:
    """Yield the parts for which a call makes data, also through the functions that contain the call."""
    bound, made = outer or {}, made or call
    parts = part_of_call(source, call, switch.parameter)
    if parts:
        value = _passed(source, switch, made, bound) if switch.parameter else "on"
        for each in parts.split("|") if value else ():
            yield _Use(each, call, value)
        return
    function = function_of(source, call)
    if isinstance(function, ast.Module) or len(bound) >= _MAX_DEPTH or id(function) in bound:
        return
    known = definitions(source)
    around = source.parents.get(id(function))
    name = around.name if isinstance(around, ast.ClassDef) and function.name == "__init__" else function.name
    for each in known.calls.get(name, [])[:_MAX_CALLS]:
        yield from _uses(source, switch, each, {**bound, id(function): each}, made)


def _passed(source: SourceFile, switch: Switch, call: ast.Call, bound: Mapping[int, ast.Call]) -> str:
    """Return what a call passes as a switch: "on", "off", the text of a setting, or "" if it is unknown."""
    return _value(source, _argument(source, switch.function, switch.parameter, call), bound)


def _argument(source: SourceFile, function: Any, name: str, call: ast.Call) -> ast.expr | None:
    """Return the argument of a parameter, also one in ``**options``, or its default value."""
    is_named = any(each.arg == name for each in call.keywords)
    for each in call.keywords if not is_named else ():
        options = _options(source, each.value) if each.arg is None else {}
        if options is None or name in options:
            return None if options is None else options[name]
    if not is_named and any(isinstance(each, ast.Starred) for each in call.args):
        return None
    return argument_of(source, function, call, name)


def _options(source: SourceFile, node: ast.expr) -> dict[str, ast.expr] | None:
    """Return the entries of a dictionary that is passed as ``**options``; None if they are unknown."""
    name = getattr(node, "id", "")
    writes = [
        e
        for e in source.nodes_of(ast.Subscript)
        if getattr(e.value, "id", "") == name and not isinstance(e.ctx, ast.Load)
    ]
    changes = [
        e
        for e in source.all_calls
        if isinstance(e.func, ast.Attribute) and getattr(e.func.value, "id", "") == name and name
    ]
    if name and (writes or any(last_name(each.func) in ("update", "pop", "setdefault") for each in changes)):
        return None
    found = assigned_in(function_of(source, node), name) or assigned_in(source.tree, name) if name else [node]
    match found:
        case [ast.Dict(keys=keys, values=values)]:
            options: dict[str, ast.expr] = {}
            for key, value in zip(keys, values, strict=True):
                inner = {str(getattr(key, "value", "")): value} if key is not None else _options(source, value)
                if inner is None:
                    return None
                options |= inner
            return options
        case [ast.Call(func=ast.Name(id="dict"), args=args, keywords=keywords)]:
            parts = [*args, *(each.value for each in keywords if each.arg is None)]
            outer = [_options(source, each) for each in parts]
            if any(each is None for each in outer):
                return None
            return {k: v for part in outer if part for k, v in part.items()} | {
                e.arg: e.value for e in keywords if e.arg
            }
        case _:
            return None


def _value(source: SourceFile, node: Any, bound: Mapping[int, ast.Call], depth: int = _MAX_DEPTH) -> str:
    match node:
        case ast.Constant(value=value):
            return "on" if value is not None and value is not False and value != 0 else "off"
        case ast.Attribute():
            return ast.unparse(node)
        case ast.Name(id=name):
            function = function_of(source, node)
            call = bound.get(id(function))
            is_parameter = any(each.arg == name for each in nodes_in(getattr(function, "args", ast.Pass()), ast.arg))
            values = assigned_in(function, name)
            if is_parameter and not values:
                argument = _argument(source, function, name, call) if call is not None else None
                return _value(source, argument, bound, depth - 1) if argument is not None and depth else name
            values = values or assigned_in(source.tree, name)
            return _value(source, values[0], bound, depth - 1) if len(values) == 1 and depth else ""
        case _:
            return ""
