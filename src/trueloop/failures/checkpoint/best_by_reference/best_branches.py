"""Decides whether a program stores a state where a metric improves, so that later states must not replace it."""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.abstract_value import AbstractValue
from trueloop.analysis.operations import Branch, Loop, Op
from trueloop.analysis.queries.batch_loops import assigned_pairs
from trueloop.analysis.queries.loops import is_inside
from trueloop.analysis.queries.possible_values import enclosing_nodes
from trueloop.analysis.source_file import SourceFile
from trueloop.core.source_text import dotted_name, is_none, nodes_in

_ORDERINGS: Final = ast.Lt | ast.LtE | ast.Gt | ast.GtE
_PATHS: Final = (ast.Name, ast.Attribute, ast.Subscript)


def is_best_checkpoint(source: SourceFile, capture: Op, loop: Loop) -> bool:
    """Return True if a loop stores a state when a metric improves.

    This is the case if the ``if`` compares with a variable that the same block assigns, also with a margin, through a
    flag or in a method: ``if loss < best - margin: best, state = loss, model.state_dict()``; or with the smallest or
    largest of all values. A variable that counts iterations is no metric.
    """
    for branch in capture.branches:
        if not isinstance(branch.node, ast.If) or is_inside(loop.node, branch.node):
            continue
        arm = _arm(source, branch)
        stored = {path for statement in arm for path in _stored_paths(statement)}
        stored |= _returned_elsewhere(capture, arm)
        for compared in _comparisons(branch):
            if (_read_paths(compared) & stored and not _counts(source, capture, compared)) or _is_extreme(compared):
                return True
    return False


def kept_by_callbacks(source: SourceFile) -> Iterator[tuple[Any, ast.Call]]:
    """Yield states that a function keeps where a metric improves, for another one to load, and the load.

    The loops that call such functions need not be known: ``self.best_state = model.state_dict()``.
    """
    loads = {_item(each.args[0]): each for each in source.all_calls if _is_load(each)}
    stored = [each for each in source.nodes_of(ast.Assign) if _item(each.targets[0]) in loads.keys() - {""}]
    for node in stored:
        others = [each.value for each in stored if _item(each.targets[0]) == _item(node.targets[0])]
        branch = next((each for each in enclosing_nodes(source, node) if isinstance(each, ast.If)), None)
        if branch is None or not all(_is_state(each) or is_none(each) for each in others) or is_none(node.value):
            continue
        arm = branch.body if any(each is node for each in branch.body) else []
        paths = {path for statement in arm for path in _assigned(statement)}
        compared = [each for each in nodes_in(branch.test, ast.Compare) if isinstance(each.ops[0], _ORDERINGS)]
        read = {ast.unparse(side) for each in compared for part in (each.left, *each.comparators)
                for side in nodes_in(part, *_PATHS)}  # fmt: skip
        read |= {_item(each.args[0]) for each in nodes_in(branch.test, ast.Call) if each.args}  # ctx.get("best", 0.0)
        load = loads[_item(node.targets[0])]
        if paths & read - {""} and _is_one_model(source, node.value.func.value, load.func.value):  # type: ignore[attr-defined]
            yield node.value, load


def _is_one_model(source: SourceFile, kept: ast.expr, loaded: ast.expr) -> bool:
    """Return True for two variables of one name which gets a new model at most once, and in no loop."""
    names = {_item(each) or dotted_name(each) for each in (kept, loaded)}
    made = [
        each
        for each in source.nodes_of(ast.Assign)
        for target, value in assigned_pairs(each)
        if isinstance(value, ast.Call) and (_item(target) or dotted_name(target)) in names
    ]
    in_loops = [each for each in made for e in enclosing_nodes(source, each) if isinstance(e, ast.For | ast.While)]
    return len(names) == 1 and len(made) < 2 and not in_loops


def _is_load(call: ast.Call) -> bool:
    is_load = isinstance(call.func, ast.Attribute) and call.func.attr == "load_state_dict"
    return is_load and len(call.args) == 1 and "best" in _item(call.args[0]).lower()


def _is_state(node: ast.expr) -> bool:
    """Return True for ``model.state_dict()`` of a model that is no copy."""
    match node:
        case ast.Call(func=ast.Attribute(attr="state_dict", value=ast.Name() | ast.Attribute() as model), args=[]):
            return not re.search(r"best|copy|ema|averag|swa|optim|sched", ast.unparse(model), re.IGNORECASE)
        case _:
            return False


def _item(node: ast.expr) -> str:
    """Return the name of an attribute or the key of an item: "best" for ``self.best`` and ``context["best"]``."""
    if isinstance(node, ast.Subscript):
        node = node.slice
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    return node.attr if isinstance(node, ast.Attribute) else ""


def _assigned(statement: ast.stmt) -> Iterator[str]:
    """Yield what a statement assigns, as text, and the keys of items."""
    for each in nodes_in(statement, *_PATHS):
        if isinstance(each.ctx, ast.Store):
            yield from (ast.unparse(each), _item(each))


def _arm(source: SourceFile, branch: Branch) -> list[ast.stmt]:
    """Return the statements of an arm; after ``if worse: return`` those that follow."""
    arm: list[ast.stmt] = branch.node.body if branch.arm == 0 else branch.node.orelse
    return arm or source.following(branch.node)


def _stored_paths(statement: ast.stmt) -> Iterator[str]:
    """Yield the variables, attributes and dictionaries to which a statement assigns something."""
    for each in nodes_in(statement, *_PATHS):
        if isinstance(each.ctx, ast.Store):
            yield _path(each)
    for call in nodes_in(statement, ast.Call):
        if isinstance(call.func, ast.Attribute) and call.func.attr == "update":
            yield _path(call.func.value)


def _returned_elsewhere(capture: Op, arm: list[ast.stmt]) -> set[str]:
    """Return the names that a function returns in place of the state: ``best, kept`` instead of ``loss, state``."""
    returns = [each for statement in arm for each in nodes_in(statement, ast.Return)]
    if capture.function is None or not any(is_inside(capture.node, each) for each in returns):
        return set()
    others = [each for each in nodes_in(capture.function, ast.Return) if each not in returns]
    new, old = ({each.id for one in part for each in nodes_in(one, ast.Name)} for part in (returns, others))
    return old - new


def _comparisons(branch: Branch) -> Iterator[ast.Compare]:
    """Yield the comparisons of a condition, also those in the flags and methods that it reads."""
    queue: list[AbstractValue] = [] if branch.test is None else [branch.test]
    found: list[Any] = list(nodes_in(branch.node.test, ast.Compare))
    while queue:
        value = queue.pop()
        queue += value.union or (value.sources if isinstance(value.node, ast.UnaryOp) else ())
        if not value.union and isinstance(value.node, ast.Compare) and value.node not in found:
            found.append(value.node)
    yield from (each for each in found if isinstance(each.ops[0], _ORDERINGS) or _is_extreme(each))


def _is_extreme(compared: ast.Compare) -> bool:
    """Return True for ``loss == min(losses)``."""
    sides = (compared.left, *compared.comparators)
    calls = [each for each in sides if isinstance(each, ast.Call) and dotted_name(each.func) in ("min", "max")]
    is_certain = len(sides) == 2 and len(calls) == 1 and len(calls[0].args) == 1
    return is_certain and isinstance(compared.ops[0], ast.Eq | ast.LtE | ast.GtE)


def _read_paths(compared: ast.Compare) -> set[str]:
    sides = (compared.left, *compared.comparators)
    return {_path(each) for side in sides for each in nodes_in(side, *_PATHS)} - {"", "self"}


def _counts(source: SourceFile, capture: Op, compared: ast.Compare) -> bool:
    """Return True if a comparison reads a variable that counts iterations of the loops around a capture."""
    targets = [each.node.target for each in capture.loops if isinstance(each.node, ast.For)]
    counters = {each.id for target in targets for each in nodes_in(target, ast.Name)}
    for each in source.nodes_of(ast.AugAssign):
        if isinstance(each.op, ast.Add) and isinstance(each.value, ast.Constant):
            counters.add(ast.unparse(each.target))
    return any(ast.unparse(each) in counters for each in nodes_in(compared, *_PATHS))


def _path(node: ast.expr) -> str:
    """Return the name of a variable, or of the dictionary or list of an item: "self.best" for ``self.best["loss"]``."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return dotted_name(node)
