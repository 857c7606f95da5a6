"""Finds target networks and averages that are created with random weights of their own, in the source."""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.best_values import initial_number
from trueloop.analysis.queries.class_instances import Instance, called_function, definitions, instances
from trueloop.analysis.queries.possible_values import arguments_of_calls, enclosing_nodes, origins, parameters_of
from trueloop.analysis.queries.weight_averages import WeightedSum, parameter_of, weight_value, weighted_sums
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import dotted_name, nodes_in
from trueloop.failures.failure import Rule

MIN_OWN: Final = 0.8  # an average that keeps less of itself soon has the weights of the model
_TENSORS: Final = frozenset(("parameters", "named_parameters", "state_dict", "buffers"))
_COPIES: Final = re.compile(r"copy|clone|load|pretrain|ema|averag|hub|resnet|share|from_|getattr|import", re.IGNORECASE)
_LOADING: Final = re.compile(r"load|restore|resume|from_checkpoint|__setstate__", re.IGNORECASE)
_HARMLESS: Final = re.compile(r"print|summary|save|len|count|freeze|freez|grad|range|isinstance|id$|type|append|watch")


class _Mixed(NamedTuple):
    """Two networks, of which one takes over a share of the other."""

    update: WeightedSum
    average: ast.expr
    model: ast.expr


def find_created_apart(source: SourceFile) -> Iterator[Hit]:
    """Yield each network that an average begins with, if it is created like the model and never gets its weights."""
    reported: set[str] = set()
    for mixed in _mixed_networks(source):
        average, model = (_created(source, each) for each in (mixed.average, mixed.model))
        if average is None or model is None or dotted_name(average.target) in reported:
            continue
        names = last_name(average.target), last_name(model.target)
        is_alike = last_name(average.call.func) == last_name(model.call.func) and names[0] != names[1]
        if is_alike and not _is_seeded(source, average) and not _is_copied(source, average.target):
            reported.add(dotted_name(average.target))
            yield Hit(
                message=f"`{ast.unparse(average.target)}` begins with random weights of its own, not with those of "
                f"`{ast.unparse(model.target)}`, and takes over a small share of them in each update: until then, its "
                "outputs are those of an untrained network.",
                node=average.target,
                related=((mixed.update.node, "the weights are mixed here"),),
            )


def _mixed_networks(source: SourceFile) -> Iterator[_Mixed]:
    for loop in source.nodes_of(ast.For):
        if len(nodes_in(loop, ast.For)) > 1:
            continue
        for update in weighted_sums(loop):
            tensors = [parameter_of(update.average), *(parameter_of(each) for each in update.parts[1:])]
            owners = [_owner(source, loop, each) for each in tensors]
            owners += _others(source, loop, owners[0]) if len(owners) == 1 else []
            if len(owners) == 2 and None not in owners and _is_slow(source, update):
                pairs = zip(*(_networks(source, each) for each in owners), strict=False)  # type: ignore[arg-type]
                yield from (_Mixed(update, average, model) for average, model in pairs)


def _owner(source: SourceFile, loop: ast.For, tensor: ast.expr) -> ast.expr | None:
    """Return the network whose parameter a variable of a loop is; None if it is unknown."""
    match tensor:
        case ast.Name(id=name):
            zipped = _zipped(source, loop.target, loop.iter, name)
        case ast.Subscript(value=ast.Name() | ast.Call() as state):
            zipped = state
        case _:
            return None
    for each in origins(source, zipped, 2) if zipped is not None else ():
        calls = [call.func for call in nodes_in(each, ast.Call) if last_name(call.func) in _TENSORS]
        if len(calls) == 1 and isinstance(calls[0], ast.Attribute):
            return calls[0].value
    return None


def _others(source: SourceFile, loop: ast.For, average: ast.expr | None) -> list[ast.expr | None]:
    """Return the other network of ``zip(average.parameters(), model.parameters())``."""
    calls = [each.func for each in nodes_in(loop.iter, ast.Call) if last_name(each.func) in _TENSORS]
    return [each.value for each in calls if isinstance(each, ast.Attribute) and each.value is not average]


def _zipped(source: SourceFile, target: ast.expr, iterable: ast.expr, name: str) -> ast.expr | None:
    """Return what a loop zips for one of its variables: ``zip(a, b)`` for ``x, y``."""
    match target, iterable:
        case ast.Tuple(elts=variables), ast.Call(func=ast.Name(id="zip"), args=args):
            pairs = zip(variables, args, strict=False)
            return next((arg for variable, arg in pairs if name in _stored(variable)), None)
        case ast.Tuple(elts=[_, ast.Tuple() as inner]), ast.Call(func=ast.Name(id="enumerate"), args=[arg, *_]):
            return _zipped(source, inner, arg, name)
        case _:
            return iterable if name in _stored(target) else None


def _stored(target: ast.expr) -> list[str]:
    return [each.id for each in nodes_in(target, ast.Name)]


def _networks(source: SourceFile, node: ast.expr) -> list[ast.expr]:
    """Return the networks that a parameter gets, in the order of the calls, or a loop variable, or a network itself."""
    if not isinstance(node, ast.Name):
        return [node]
    function = function_of(source, node)
    loops = [each for each in enclosing_nodes(source, node) if isinstance(each, ast.For)]
    for loop in loops:
        zipped = _zipped(source, loop.target, loop.iter, node.id)
        for each in origins(source, zipped, 2) if zipped is not None else ():
            if isinstance(each, ast.List | ast.Tuple):
                return each.elts
    if not isinstance(function, ast.Module) and node.id in [each.arg for each in parameters_of(function)]:
        return arguments_of_calls(source, function, node.id)
    return [node]


def _is_slow(source: SourceFile, update: WeightedSum) -> bool:
    """Return True if an average certainly keeps most of itself in each update, also in the first one."""
    share = weight_value(source, update.own)
    own = None if share is None else 1 - share if update.complement else share
    given = [value for each in nodes_in(update.own, ast.Name, ast.Attribute) for value in origins(source, each, 3)]
    numbers = [initial_number(each) for each in given]
    is_fixed = not any(isinstance(each, ast.IfExp) for each in given)
    return own is not None and own >= MIN_OWN and is_fixed and not any(each == 1 for each in numbers)


def _created(source: SourceFile, network: ast.expr) -> Instance | None:
    """Return the only assignment of a network, if that creates it with new weights."""
    name = dotted_name(network)
    found = [each for each in instances(source) if dotted_name(each.target) == name]
    written = [each for each in source.nodes_of(ast.Attribute, ast.Name) if dotted_name(each) == name]
    if len(found) != 1 or sum(not isinstance(each.ctx, ast.Load) for each in written) != 1:
        return None
    call = found[0].call
    names = [ast.unparse(call.func), *(each.arg or "" for each in call.keywords)]
    return None if any(map(_COPIES.search, names)) else found[0]


def _is_seeded(source: SourceFile, instance: Instance) -> bool:
    """Return True if a seed makes the weights of all instances of a class the same."""
    made = called_function(source, instance.call)
    owner = source.parents.get(id(made)) if made is not None else None
    is_open = any(each.arg is None for each in instance.call.keywords)
    if made is None and (is_open or not last_name(instance.call.func)[:1].isupper()):
        return True  # a function of another file, or an unknown seed
    scopes = [each for each in (owner if isinstance(owner, ast.ClassDef) else made,) if each is not None]
    scopes.append(function_of(source, instance.call))
    texts = [ast.unparse(each) for each in scopes if not isinstance(each, ast.Module)]
    return any(re.search(r"manual_seed|set_seed|seed_everything|seed_all|\.seed\(", text) for text in texts) or any(
        "seed" in ast.unparse(each) for each in (*instance.call.args, *(k.value for k in instance.call.keywords))
    )


def _is_copied(source: SourceFile, network: ast.expr) -> bool:
    """Return True if a network may get the weights of another one at some time."""
    copies = [each for each in source.nodes_of(ast.For) if _copies_in(each)]
    if any(_may_be(source, owner, network) for loop in copies for owner in _others(source, loop, None)):
        return True
    for call in source.all_calls:
        is_load = last_name(call.func) == "load_state_dict" and call.args
        if is_load and not _LOADING.search(getattr(function_of(source, call), "name", "")):
            if _may_be(source, getattr(call.func, "value", None), network):
                return True
        elif _is_passed_away(source, call, network):
            return True
    return False


def _is(node: Any, network: ast.expr) -> bool:
    return isinstance(node, type(network)) and last_name(node) == last_name(network)


def _copies_in(loop: ast.For) -> bool:
    """Return True for a loop over the parameters of two networks that copies them completely."""
    if sum(last_name(each.func) in _TENSORS for each in nodes_in(loop.iter, ast.Call)) < 2:
        return False
    sums = {id(each.node) for each in weighted_sums(loop)}
    for each in nodes_in(loop, ast.Call, ast.Assign):
        is_copy = isinstance(each, ast.Call) and last_name(each.func) == "copy_"
        if (is_copy or isinstance(each, ast.Assign)) and id(each) not in sums:
            return True
    return False


def _may_be(source: SourceFile, owner: Any, network: ast.expr) -> bool:
    """Return True if an expression may be a network, also the parameter of a function."""
    if not isinstance(owner, ast.Name):
        return _is(owner, network)
    values = _networks(source, owner)
    is_unknown = values in ([], [owner]) and not any(last_name(each.target) == owner.id for each in instances(source))
    return is_unknown or any(_is(each, network) for each in values)


def _is_passed_away(source: SourceFile, call: ast.Call, network: ast.expr) -> bool:
    """Return True if a call passes a network to code that the program does not show, or runs a method of its own."""
    if isinstance(call.func, ast.Attribute) and _is(call.func.value, network):
        return bool(re.search(r"copy|update|sync|init|apply", call.func.attr))
    given = [each for each in (*call.args, *(key.value for key in call.keywords)) if _is(each, network)]
    is_known = last_name(call.func) in definitions(source).functions
    return bool(given) and not is_known and not _HARMLESS.search(last_name(call.func))


RULE = Rule(
    required_words=("for ", "backward(|training_step", "1 -|1-|1.0 -|1.0-|1. -|lerp_|mul_(", "zip(|state_dict()"),
    find=find_created_apart,
)
