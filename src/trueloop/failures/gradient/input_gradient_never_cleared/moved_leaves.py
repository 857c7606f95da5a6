"""Finds tensors that a loop moves along their own ``.grad``, without clearing it, in the text of a program."""

import ast
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final, NamedTuple

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.source_file import SourceFile, last_name
from trueloop.core.source_text import dotted_name, nodes_in

_CLEARING: Final = re.compile(r"zero|clear|reset|grad")
_NOT_MOVING: Final = frozenset(("requires_grad_", "retain_grad_", "share_memory_", "detach_"))


class MovedLeaf(NamedTuple):
    """A tensor that is moved along a gradient that nothing in the loop clears."""

    name: str
    read: ast.Attribute
    """Where the loop reads the gradient."""
    backward: ast.Call


class _Piece(NamedTuple):
    """A part of the program that each iteration runs, and the name of the tensor in it."""

    node: Any
    name: str


def moved_leaves(source: SourceFile) -> Iterator[MovedLeaf]:
    """Yield each leaf that a loop moves in place with a gradient that adds up over the iterations."""
    reported: set[int] = set()
    optimized = _listed_in_calls(source) if ".zero_grad(" in source.text.source else set[str]()
    functions: dict[str, list[ast.FunctionDef]] = {}
    for each in source.nodes_of(ast.FunctionDef):
        functions.setdefault(each.name, []).append(each)
    for loop in reversed([*source.nodes_of(ast.For, ast.While)]):  # inner ones first
        if isinstance(loop.body[-1], ast.Break | ast.Return | ast.Raise):
            continue
        for name in sorted(_leaves(source, loop) - optimized):
            pieces = [_Piece(loop, name), *_called(loop, name, functions)]
            found = _judge(name, pieces)
            if found is not None and id(found.read) not in reported:
                reported.add(id(found.read))
                yield found


def _listed_in_calls(source: SourceFile) -> set[str]:
    """Return the names in lists that calls get, as an optimizer gets ``[image]``, and those of parameters."""
    lists = [each for call in source.all_calls for each in call.args if isinstance(each, ast.List | ast.Tuple)]
    found = {dotted_name(part) for each in lists for part in nodes_in(each, ast.Name, ast.Attribute)}
    for each in source.nodes_of(ast.Assign):
        if isinstance(each.value, ast.Call) and last_name(each.value.func) == "Parameter":
            found |= {dotted_name(target) for target in each.targets}
    return found


def _leaves(source: SourceFile, loop: Any) -> set[str]:
    """Return the names of tensors that require gradients and that are created before a loop, not within it."""
    scope = function_of(source, loop)
    found = _created_leaves(scope)
    if isinstance(scope, ast.FunctionDef):
        for call in source.all_calls if scope.args.args else ():
            if last_name(call.func) == scope.name:
                own = _created_leaves(function_of(source, call))
                found |= {each for each, value in _passed(call, scope) if _is_leaf(value, own)}
    return {each for each in found - {""} if not _is_rebound(loop, each)}


def _is_leaf(value: ast.expr, leaves: set[str]) -> bool:
    return dotted_name(value) in leaves - {""} or (_requires_gradients(value) and _is_creation(value))


@lru_cache(maxsize=64)
def _created_leaves(scope: Any) -> set[str]:
    found: set[str] = set()
    for each in nodes_in(scope, ast.Assign):
        for target in each.targets:
            if isinstance(target, ast.Attribute) and target.attr == "requires_grad" and _is_true(each.value):
                found.add(dotted_name(target.value))
            elif _requires_gradients(each.value) and _is_creation(each.value):
                found.add(dotted_name(target))
    for each in nodes_in(scope, ast.Expr):
        match each.value:
            case ast.Call(func=ast.Attribute(attr="requires_grad_", value=owner), args=[] | [ast.Constant(value=True)]):
                found.add(dotted_name(owner))
            case _:
                pass
    return found


def _is_true(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def _requires_gradients(value: ast.expr) -> bool:
    return bool(re.search(r"requires_grad(_\((True)?\)|=True)|Parameter\(", ast.unparse(value)))


def _is_creation(value: ast.expr) -> bool:
    """Return True for a call that returns one new leaf, as ``x.clone().requires_grad_()``."""
    match value:
        case ast.Call(func=ast.Attribute(attr="requires_grad_")):
            return True
        case ast.Call(func=func, keywords=keywords):
            return last_name(func) == "Parameter" or any(each.arg == "requires_grad" for each in keywords)
        case _:
            return False


def _is_rebound(node: ast.AST, name: str) -> bool:
    """Return True if a node may make another tensor of a variable, in an assignment or as the target of a loop."""
    augmented = {id(each.target) for each in nodes_in(node, ast.AugAssign)}
    stored = [each for each in nodes_in(node, ast.Name, ast.Attribute) if isinstance(each.ctx, ast.Store)]
    return any(dotted_name(each) == name and id(each) not in augmented for each in stored)


def _called(loop: Any, name: str, functions: dict[str, list[ast.FunctionDef]]) -> Iterator[_Piece]:
    """Yield the functions of the file that a loop calls, and that use the tensor, also without getting it."""
    for call in nodes_in(loop, ast.Call):
        found = functions.get(last_name(call.func), [])
        if len(found) != 1:
            continue
        yield from (_Piece(found[0], each) for each, value in _passed(call, found[0]) if dotted_name(value) == name)
        is_free = name not in [each.arg for each in found[0].args.args] and not _is_rebound(found[0], name)
        if name.startswith("self.") or (is_free and any(each.id == name for each in nodes_in(found[0], ast.Name))):
            yield _Piece(found[0], name)


def _passed(call: ast.Call, function: ast.FunctionDef) -> list[tuple[str, ast.expr]]:
    """Return the parameters of a function with the arguments that a call passes."""
    parameters = [each.arg for each in function.args.args]
    if isinstance(call.func, ast.Attribute) and parameters[:1] == ["self"]:
        parameters = parameters[1:]
    return [*zip(parameters, call.args, strict=False), *((each.arg or "", each.value) for each in call.keywords)]


def _judge(name: str, pieces: list[_Piece]) -> MovedLeaf | None:
    reads = [read for each in pieces for read in _gradients(each) if isinstance(read.ctx, ast.Load)]
    backward = next((call for each in pieces for call in _backwards(each.node)), None)
    if not reads or backward is None or not any(map(_moves, pieces)):
        return None
    if any(_may_clear(each) or _is_rebound(each.node, each.name) for each in pieces):
        return None
    return MovedLeaf(name, reads[0], backward)


def _gradients(piece: _Piece) -> Iterator[ast.Attribute]:
    for each in nodes_in(piece.node, ast.Attribute):
        if each.attr == "grad" and _plain_name(each.value) == piece.name:
            yield each


def _backwards(node: ast.AST) -> Iterator[ast.Call]:
    return (each for each in nodes_in(node, ast.Call) if last_name(each.func) == "backward")


def _plain_name(node: Any) -> str:
    """Return the name of a tensor without ``.data`` and indices."""
    while isinstance(node, ast.Subscript) or (isinstance(node, ast.Attribute) and node.attr == "data"):
        node = node.value
    return dotted_name(node)


def _moves(piece: _Piece) -> bool:
    """Return True if a part of the program changes the values of the tensor in place."""
    for each in nodes_in(piece.node, ast.AugAssign, ast.Assign, ast.Call):
        match each:
            case ast.AugAssign(target=target):
                changed = [target]
            case ast.Assign(targets=targets):
                changed = [part for part in targets if not isinstance(part, ast.Name)]
            case ast.Call(func=ast.Attribute(attr=attr, value=owner)) if attr.endswith("_") and attr[:1] != "_":
                changed = [] if attr in _NOT_MOVING else [owner]
            case _:
                changed = []
        if any(_plain_name(target) == piece.name for target in changed):
            return True
    return False


def _may_clear(piece: _Piece) -> bool:
    """Return True if a part of the program may clear or replace the gradient of the tensor."""
    names = {piece.name, piece.name.rpartition(".")[0]}
    for each in nodes_in(piece.node, ast.Call):
        function, arguments = each.func, [*each.args, *(keyword.value for keyword in each.keywords)]
        if isinstance(function, ast.Attribute) and function.attr.endswith("_") and _has_gradient(function, piece.name):
            return True
        is_passed = any(dotted_name(part) in names for value in arguments for part in nodes_in(value, ast.Name))
        if is_passed and _CLEARING.search(last_name(function)):
            return True
    stores = [e for e in nodes_in(piece.node, ast.Attribute) if isinstance(e.ctx, ast.Store | ast.Del)]
    return any(_has_gradient(each, piece.name) for each in stores)


def _has_gradient(node: ast.AST, name: str) -> bool:
    return any(e.attr == "grad" and _plain_name(e.value) == name for e in nodes_in(node, ast.Attribute))
