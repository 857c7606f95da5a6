"""Finds rates that a program multiplies again and again by a factor that already stands for the whole decay."""

import ast
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.class_instances import definitions
from trueloop.analysis.queries.possible_values import enclosing_nodes, origins, possible_values
from trueloop.analysis.queries.td_targets import product_factors
from trueloop.analysis.source_file import SourceFile, last_name
from trueloop.core.source_text import encloses, nodes_in

_RATE: Final = re.compile(r"(^|_)(lr|learning_?rate|rate)($|_)", re.IGNORECASE)
_COUNTER: Final = re.compile(r"step|epoch|iter|(^|_)(it|t|i|n|update|updates|ep|progress)($|_)", re.IGNORECASE)
_DEPTH: Final = 5


def compounding_decays(source: SourceFile) -> Iterator[tuple[ast.AST, ast.expr]]:
    """Yield each statement that multiplies the current rate by a function of the progress, with this factor."""
    for statement in source.nodes_of(ast.Assign, ast.AugAssign):
        target: Any = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
        factor = _factor(source, statement, target)
        if factor is not None and not _is_set_before(source, statement, target):
            own = {each.id for each in nodes_in(target, ast.Name)} | _group_variables(source, statement)
            if _depends(source, factor, own - {"self"}):
                yield statement, factor
    for call in definitions(source).calls.get("MultiplicativeLR", []):
        given = [*call.args[1:2], *(each.value for each in call.keywords if each.arg == "lr_lambda")]
        for function in [value for each in given for value in origins(source, each)]:
            counter = function.args.args[0].arg if isinstance(function, ast.Lambda) and function.args.args else ""
            if isinstance(function, ast.Lambda) and _progress(function.body, partial(_is_named, counter)):
                yield call, function.body


def _is_named(name: str, node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _factor(source: SourceFile, statement: ast.Assign | ast.AugAssign, target: ast.expr) -> ast.expr | None:
    """Return by what ``group["lr"] *= factor`` or ``group["lr"] = group["lr"] * factor`` multiplies a lasting rate."""
    if not _is_group_rate(target) and not _is_lasting_rate(source, statement, target):
        return None
    match statement:
        case ast.AugAssign(op=ast.Mult(), value=value):
            return value
        case ast.Assign(value=ast.BinOp(op=ast.Mult()) as product):
            parts = list(product_factors(product))
            old = [each for each in parts if _is_old(source, each, target)]
            rest = [each for each in parts if each not in old]
            return None if len(old) != 1 or not rest else rest[0] if len(rest) == 1 else product
        case _:
            return None


def _is_old(source: SourceFile, node: ast.expr, target: ast.expr) -> bool:
    """Return True for the current rate: the target itself, or a variable that has just got it."""
    values = [node, *(possible_values(source, node) if isinstance(node, ast.Name) else ())]
    return any(ast.unparse(each) == ast.unparse(target) for each in values)


def _is_group_rate(node: ast.expr) -> bool:
    match node:
        case ast.Subscript(slice=ast.Constant(value="lr"), value=ast.Name() | ast.Subscript() | ast.Attribute()):
            return True
        case _:
            return False


def _is_lasting_rate(source: SourceFile, statement: ast.stmt, target: ast.expr) -> bool:
    """Return True for a rate that outlives an iteration and is stored in the groups of an optimizer."""
    if not isinstance(target, ast.Name | ast.Attribute) or not _RATE.search(last_name(target)):
        return False
    function = function_of(source, statement)
    stored = any(
        _is_group_rate(place) and ast.unparse(each.value) == ast.unparse(target)
        for each in nodes_in(function, ast.Assign)
        for place in each.targets
    )
    loops = [each for each in enclosing_nodes(source, statement) if isinstance(each, ast.For | ast.While)]
    lasts = isinstance(target, ast.Attribute) or bool(loops)
    others = [e for e in nodes_in(loops[-1] if loops else function, ast.Assign) if e is not statement]
    is_set = any(ast.unparse(place) == ast.unparse(target) for each in others for place in each.targets)
    return stored and lasts and not is_set


def _is_set_before(source: SourceFile, statement: ast.stmt, target: ast.expr) -> bool:
    """Return True if the same function first sets the rate to another value, such as the base rate."""
    text = ast.unparse(target)
    return any(
        each is not statement
        and each.lineno < statement.lineno
        and any(ast.unparse(place) == text for place in each.targets)
        and text not in ast.unparse(each.value)
        for each in nodes_in(function_of(source, statement), ast.Assign)
        if not isinstance(function_of(source, statement), ast.Module) or each in source.block(statement)
    )


def _group_variables(source: SourceFile, statement: ast.stmt) -> set[str]:
    """Return the variables of the loop over the parameter groups, as ``i`` for ``enumerate(param_groups)``."""
    loop = next((e for e in enclosing_nodes(source, statement) if isinstance(e, ast.For)), None)
    text = "" if loop is None else ast.unparse(loop.iter)
    is_over_groups = "group" in text or "optim" in text
    return {e.id for e in nodes_in(loop.target, ast.Name)} if loop is not None and is_over_groups else set()


def _depends(source: SourceFile, factor: ast.expr, own: set[str], depth: int = _DEPTH) -> bool:
    """Return True if a factor, or the value of a variable or call in it, changes with a counter of the training."""
    names = {each.id for each in nodes_in(factor, ast.Name)}
    if names & own:
        return False
    if _progress(factor, lambda node: _is_counter(source, node)):
        return True
    values = [
        value
        for each in nodes_in(factor, ast.Name, ast.Call, ast.Attribute)
        if depth and not _is_counter(source, each)
        for value in possible_values(source, each)
    ]
    values += [
        each.value
        for call in nodes_in(factor, ast.Call)
        if isinstance(call.func, ast.Attribute) and last_name(call.func.value) == "self"
        for function in [definitions(source).functions.get(call.func.attr)]
        if function is not None
        for each in nodes_in(function, ast.Return)
        if each.value is not None
    ]
    return any(_depends(source, each, own, depth - 1) for each in values if depth and "'lr'" not in ast.unparse(each))


def _progress(factor: ast.expr, is_counter: Callable[[ast.AST], bool]) -> bool:
    """Return True for ``(1 - step / total) ** 0.9``, ``gamma ** epoch`` and such, not for a ratio of two of them."""
    if isinstance(factor, ast.IfExp):
        return _progress(factor.body, is_counter) or _progress(factor.orelse, is_counter)
    if isinstance(factor, ast.BoolOp | ast.Compare):
        return False
    counted = [each for each in nodes_in(factor, ast.Name, ast.Attribute) if is_counter(each)]
    conditions = [*nodes_in(factor, ast.Compare), *(e.test for e in nodes_in(factor, ast.IfExp))]
    counted = [each for each in counted if not any(encloses(test, each) for test in conditions)]
    remainders = [each for each in nodes_in(factor, ast.BinOp) if isinstance(each.op, ast.Mod)]
    if len(counted) != 1 or any(encloses(each, counted[0]) for each in remainders):
        return False
    powers = [each for each in nodes_in(factor, ast.BinOp) if isinstance(each.op, ast.Div | ast.Pow)]
    return any(encloses(each, counted[0]) for each in powers) and not _counts_down(factor, counted[0])


def _counts_down(factor: ast.expr, counter: ast.AST) -> bool:
    """Return True for ``1 - 1 / (total - step)``, whose products fall in a straight line."""
    quotients = [each for each in nodes_in(factor, ast.BinOp) if isinstance(each.op, ast.Div)]
    differences = [
        each for quotient in quotients for each in nodes_in(quotient.right, ast.BinOp) if isinstance(each.op, ast.Sub)
    ]
    return any(encloses(each, counter) for each in differences)


def _is_counter(source: SourceFile, node: ast.AST) -> bool:
    """Return True for a variable or attribute that the program counts up, or that a loop counts."""
    if not isinstance(node, ast.Name | ast.Attribute) or not _COUNTER.search(last_name(node)):
        return False
    counted = {ast.unparse(e.target) for e in source.nodes_of(ast.AugAssign) if isinstance(e.op, ast.Add)}
    if ast.unparse(node) in counted:
        return True
    name = last_name(node)
    return isinstance(node, ast.Name) and any(
        name in {each.id for each in nodes_in(loop.target, ast.Name)}
        for loop in source.nodes_of(ast.For)
        if last_name(getattr(loop.iter, "func", None)) in ("range", "enumerate", "count", "trange")
    )
