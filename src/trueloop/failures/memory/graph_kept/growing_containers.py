"""What grows from turn to turn of a loop: lists, dictionaries, running totals."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.abstract_value import NO_GRAPH, AbstractValue, ValueKind
from trueloop.analysis.operations import Loop, Op, OpKind
from trueloop.analysis.source_file import SourceFile, last_name
from trueloop.core.source_text import Edit, Fix, encloses

PASSING: Final = frozenset((
    "binary Add", "binary Sub", "binary Mult", "binary Div", "binary Pow", "unary USub", "torch.Tensor.mean",
    "torch.Tensor.sum", "torch.Tensor.clone", "torch.Tensor.sqrt", "torch.Tensor.exp", "torch.Tensor.log",
    "torch.Tensor.view", "torch.Tensor.reshape", "torch.Tensor.squeeze", "torch.Tensor.unsqueeze", "torch.mean",
    "torch.sum", "torch.stack", "torch.cat", "torch.sqrt", "torch.exp",
))  # fmt: skip
"""Operations whose result has a graph where their input has one; others may give indices, which have none."""


def holds(thing: AbstractValue, graphs: set[int], depth: int = 12) -> bool:
    """True where a thing surely brings along one of these, by their ids."""
    if NO_GRAPH in thing.facts or not depth:
        return False
    if id(thing) in graphs:
        return True
    if thing.union:
        return all(holds(each, graphs, depth - 1) for each in thing.union)
    counted = thing.kind is ValueKind.UNKNOWN and isinstance(thing.node, ast.BinOp)
    if thing.kind is ValueKind.SEQUENCE or counted or (thing.kind is ValueKind.TENSOR and thing.name in PASSING):
        return any(holds(each, graphs, depth - 1) for each in thing.sources)
    return False


def growing(source: SourceFile, kept: Op, loop: Loop) -> bool:
    """True where an operation adds to something that outlives a turn of a loop, in every turn, and nothing empties it.

    What a turn makes itself, also in a function called from it, dies with the turn, however much it keeps until then.
    """
    place = _place(kept, loop)
    if place is None or not all(_regular(each.node, place) for each in kept.conditions(loop)):
        return False
    path, word = ast.unparse(place), last_name(place)
    if (
        not word
        or word in source.emptied_containers
        or _made_in_turn(source, kept, loop)
        or _bound_in_turn(source, place, loop, kept)
    ):
        return False
    bound = source.ops_in_loop(loop, OpKind.SET_ATTRIBUTE, root=kept.entry_point)
    if any(each.statement is not kept.statement and each.name == word for each in bound):
        return False
    return all(target is kept.node for target in source.assigned_in(loop).get(path, ()))


def _place(kept: Op, loop: Loop) -> ast.expr | None:
    """Return what grows, as it is written; None where it does not grow in every turn."""
    node = kept.node
    match node:
        case ast.AugAssign(op=ast.Add()) if kept.grad is True:
            local = isinstance(node.target, ast.Name)
            return node.target if not local or encloses(loop.node, node) else None
        case ast.Call(func=ast.Attribute()) if (
            kept.subject.kind is ValueKind.SEQUENCE and kept.kind is OpKind.STORE_ITEM
        ):
            return kept.node.func.value if kept.name in ("append", "insert", "appendleft", "add", "extend") else None
        case ast.Subscript() if kept.subject.kind is ValueKind.SEQUENCE and not isinstance(
            kept.statement, ast.AugAssign
        ):
            turn = {each.id for each in ast.walk(getattr(loop.node, "target", node)) if isinstance(each, ast.Name)}
            keys = {each.id for each in ast.walk(node.slice) if isinstance(each, ast.Name)}
            return node.value if turn & keys and encloses(loop.node, node) else None
        case ast.Attribute() if kept.kind is OpKind.SET_ATTRIBUTE and kept.grad is True and _added(kept) is not None:
            return node
        case _:
            return None


def _added(kept: Op) -> ast.expr | None:
    """Return ``value`` of ``self.sum = self.sum + value``."""
    statement = kept.statement
    if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.BinOp):
        return None
    path, sum_ = ast.unparse(kept.node), statement.value
    if not isinstance(sum_.op, ast.Add):
        return None
    if ast.unparse(sum_.left) == path:
        return sum_.right
    return sum_.left if ast.unparse(sum_.right) == path else None


def _regular(node: Any, place: ast.expr) -> bool:
    """True for a condition that comes true again and again, such as one on a remainder."""
    test = node.test if isinstance(node, ast.If) else None
    counted = test is not None and any(isinstance(each, ast.Mod) for each in ast.walk(test))
    return counted and test is not None and last_name(place) not in ast.unparse(test)


def _run_in_turn(kept: Op, loop: Loop) -> list[Any]:
    """Return the functions that a turn of a loop has called, directly or through others, to come to an operation."""
    inside = [encloses(loop.node, call) for call in kept.calls]
    return list(kept.functions[inside.index(True) :]) if True in inside else []


def _made_in_turn(source: SourceFile, kept: Op, loop: Loop) -> bool:
    """True where what grows, or the object whose attribute it is, may have been made in the same turn of a loop."""
    if not isinstance(kept.subject.node, ast.AST):
        return True
    owners = [
        each.subject
        for each in source.ops_of_run(kept)
        if each.kind is OpKind.SET_ATTRIBUTE and each.statement is kept.statement
    ]
    if any(_of_turn(each, loop) for each in (kept.subject, *owners)):
        return True
    places = (loop.node, *_run_in_turn(kept, loop))
    sequence = kept.kind is OpKind.STORE_ITEM and kept.subject.kind is ValueKind.SEQUENCE
    return sequence and any(encloses(each, kept.subject.node) for each in places)


def _of_turn(thing: AbstractValue, loop: Loop) -> bool:
    """True where one of the ways in which something was made is by a turn of a loop."""
    return any(node is loop.node for way in thing.alternatives() for node in way.loops or ())


def _bound_in_turn(source: SourceFile, place: ast.expr, loop: Loop, kept: Op) -> bool:
    """True where a name is given a new value by a function that a turn of a loop calls."""
    if not isinstance(place, ast.Name):
        return False
    called = [each for each in _run_in_turn(kept, loop) if encloses(each, kept.node)]
    if any(_binds(each, place.id) for each in called):
        return True
    return any(
        isinstance(each, ast.FunctionDef) and not encloses(each, loop.node) and _declares(each, place.id)
        for each in source.nodes
    )


def _binds(function: ast.AST, name: str) -> bool:
    """True where a function assigns something else to a name than what another name or attribute stands for."""
    for each in ast.walk(function):
        if isinstance(each, ast.Assign | ast.AnnAssign | ast.NamedExpr) and each.value is not None:
            targets = each.targets if isinstance(each, ast.Assign) else [each.target]
            same = isinstance(each.value, ast.Name | ast.Attribute)
            if not same and any(isinstance(one, ast.Name) and one.id == name for one in targets):
                return True
    return False


def _declares(function: ast.FunctionDef, name: str) -> bool:
    """True where a function assigns to a name that it declares global or nonlocal."""
    outer = any(isinstance(each, ast.Global | ast.Nonlocal) and name in each.names for each in ast.walk(function))
    return outer and _binds(function, name)


def detached(source: SourceFile, kept: Op, graphs: set[int]) -> Fix | None:
    """Return the fix: what is kept leaves its graph behind."""
    statement, node = kept.statement, kept.node
    value: ast.expr | None = None
    if isinstance(node, ast.AugAssign):
        value = node.value
    elif isinstance(node, ast.Call):
        value = node.args[0] if kept.name in ("append", "appendleft", "add") and len(node.args) == 1 else None
    elif kept.kind is OpKind.SET_ATTRIBUTE:
        value = _added(kept)
    elif isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        value = statement.value
    thing = kept.inputs[0] if kept.inputs else None
    if kept.kind is OpKind.SET_ATTRIBUTE and thing is not None:
        thing = next((each for each in thing.sources if holds(each, graphs)), None)
    if value is None or thing is None:
        return None
    edits = list(_detached(source, value, thing, graphs))
    return Fix(tuple(edits), safe=False, description="Keep it without its graph") if edits else None


def _detached(source: SourceFile, node: ast.expr, thing: AbstractValue, graphs: set[int]) -> Iterator[Edit]:
    if thing.kind is ValueKind.SEQUENCE:
        if isinstance(node, ast.List | ast.Tuple | ast.Dict):
            parts = node.values if isinstance(node, ast.Dict) else node.elts
            if len(parts) == len(thing.sources):
                for each, inner in zip(parts, thing.sources, strict=True):
                    if holds(inner, graphs):
                        yield from _detached(source, each, inner, graphs)
        return
    text = source.text.segment(node)
    plain = isinstance(node, ast.Name | ast.Attribute | ast.Call | ast.Subscript)
    yield source.text.replace(node, f"{text if plain else f'({text})'}.detach()")
