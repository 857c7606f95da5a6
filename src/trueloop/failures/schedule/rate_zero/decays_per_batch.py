"""Finds learning rates that are multiplied by a constant factor after every batch, in the text of a program."""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.abstract_value import AbstractValue
from trueloop.analysis.operations import OpKind
from trueloop.analysis.queries.batch_loops import (
    assigned_in,
    batch_loops,
    function_of,
    hand_made_batch_loops,
    is_loader,
)
from trueloop.analysis.queries.command_line_options import number_of
from trueloop.analysis.queries.layer_arguments import argument_node
from trueloop.analysis.queries.loops import is_batch_loop, is_statement
from trueloop.analysis.queries.possible_values import enclosing_nodes, origins
from trueloop.analysis.source_file import SourceFile, last_name
from trueloop.core.source_text import encloses, nodes_in, walk

MAX_FACTOR: Final = 0.99
MAX_OWN_FACTOR: Final = 0.97  # of a rate that only its name shows; after 150 batches 1 % is left
_OWN_RATE: Final = re.compile(r"(^|_)(lr|lrate|learn(ing)?_rate|eta|step_size)\d*$", re.IGNORECASE)
_LIMITS: Final = frozenset(("max", "clip", "clamp", "maximum"))
_BATCH_HOOK: Final = re.compile(
    r"(on_|after_)?(train(ing)?_)?(batch|step|iter(ation)?)_(end|finished)|after_(train_)?(batch|step)"
)
"""Names of methods that a training loop calls after every batch."""
SCHEDULERS: Final = {
    "torch.optim.lr_scheduler.ExponentialLR": ("1", "gamma"),
    "torch.optim.lr_scheduler.StepLR": ("2", "gamma"),
}


def decays_in_text(source: SourceFile) -> Iterator[tuple[ast.AST, float]]:
    """Yield each statement that lowers the rate by a constant factor in every iteration of a loop over batches."""
    if _is_set_elsewhere(source):
        return
    functions = {each.name: each for each in source.nodes_of(ast.FunctionDef)}
    reported: set[int] = set()
    for loop in (*batch_loops(source), *hand_made_batch_loops(source)):
        if not _trains(loop.node, functions):
            continue
        for statement in _unconditional(loop.node.body, functions):
            factor = _factor(source, statement, loop.node) or _own_factor(source, statement, loop.node)
            if factor is not None and 0 < factor <= MAX_FACTOR and id(statement) not in reported:
                reported.add(id(statement))
                yield statement, factor


def _trains(loop: ast.For, functions: dict[str, ast.FunctionDef]) -> bool:
    """Return True if a loop computes gradients, or calls a function of the file that does."""
    names = {last_name(each.func) for each in nodes_in(loop, ast.Call)}
    called = [functions[each] for each in sorted(names & functions.keys())]
    return any(
        last_name(each.func) in ("backward", "grad") for node in (loop, *called) for each in nodes_in(node, ast.Call)
    )


def _unconditional(block: list[ast.stmt], functions: dict[str, ast.FunctionDef], depth: int = 0) -> Iterator[ast.stmt]:
    """Yield the statements that each iteration runs, also those of functions that it calls, and of parameter groups."""
    for each in block:
        match each:
            case ast.For(body=body, iter=iterable) if "param_groups" in ast.unparse(iterable):
                yield from _unconditional(body, functions, depth)
            case ast.With(body=body):
                yield from _unconditional(body, functions, depth)
            case ast.Expr(value=ast.Call(func=func)) if depth < 2 and _is_own(func) and last_name(func) in functions:
                yield from _unconditional(functions[last_name(func)].body, functions, depth + 1)
            case ast.If() | ast.For() | ast.While() | ast.Try():
                if any(isinstance(part, ast.Continue | ast.Return) for part in walk(each)):
                    return  # the rest is under a condition
            case _:
                yield each


def _is_own(function: ast.expr) -> bool:
    """Return True for a function by its name, or a method of ``self``."""
    is_method = isinstance(function, ast.Attribute) and getattr(function.value, "id", "") == "self"
    return isinstance(function, ast.Name) or is_method


def _factor(source: SourceFile, statement: ast.stmt, loop: ast.For) -> float | None:
    """Return the constant by which a statement multiplies the rate of a parameter group; None if it does not."""
    match statement:
        case ast.AugAssign(target=target, op=ast.Mult() | ast.Div() as op, value=value) if _is_rate(target):
            factor = _constant(source, value)
            return factor if isinstance(op, ast.Mult) or not factor else 1 / factor
        case ast.Assign(targets=[target], value=ast.BinOp(left=left, op=ast.Mult(), right=right)) if _is_rate(target):
            old, other = (left, right) if _is_rate(left) else (right, left)
            return _constant(source, other) if _is_rate(old) else None
        case ast.Assign(targets=[target], value=ast.Name(id=name)) if _is_rate(target):
            return _factor_of_variable(source, name, loop)
        case _:
            return None


def _own_factor(source: SourceFile, statement: ast.stmt, loop: ast.For) -> float | None:
    """Return the constant by which a statement multiplies ``lr`` or ``state.lr``; None if it may not vanish."""
    match statement:
        case ast.AugAssign(target=rate, op=ast.Mult() | ast.Div() as op, value=number):
            pass
        case (
            ast.Assign(targets=[rate], value=ast.BinOp(left=old, op=ast.Mult() | ast.Div() as op, right=number))
            | ast.Assign(targets=[rate], value=ast.BinOp(left=number, op=ast.Mult() as op, right=old))
        ) if ast.unparse(old) == ast.unparse(rate):
            pass
        case _:
            return None
    name = last_name(rate)
    if not isinstance(rate, ast.Name | ast.Attribute) or not _OWN_RATE.search(name):
        return None
    limits = [each for each in source.all_calls if last_name(each.func) in _LIMITS]
    if any(name in ast.unparse(part) for each in limits for part in each.args) or _is_set_again(source, rate, loop):
        return None
    factor = number_of(source, number) or 1
    factor = 1 / factor if isinstance(op, ast.Div) else factor
    return factor if factor <= MAX_OWN_FACTOR else None


def _is_set_again(source: SourceFile, rate: ast.Name | ast.Attribute, loop: ast.For) -> bool:
    """Return True if each epoch may give a rate another value, or create the object that has it."""
    function, name = function_of(source, loop), last_name(rate)
    outer = next((each for each in enclosing_nodes(source, loop) if isinstance(each, ast.For | ast.While)), None)
    if isinstance(rate, ast.Name) and (outer is None or function_of(source, rate) is not function):
        return True  # a variable of a function that begins with its first value at each call
    for node in source.nodes_of(ast.Assign):
        where, names = function_of(source, node), {last_name(each) for each in node.targets}
        is_within = encloses(outer or function, node) and (outer or not isinstance(function, ast.Module))
        is_elsewhere = isinstance(rate, ast.Attribute) and getattr(where, "name", "__init__") != "__init__"
        if name in names and (is_within or is_elsewhere) and name not in map(last_name, walk(node.value)):
            return True
        if is_within and last_name(getattr(rate, "value", None)) in names - {""}:
            return True
    return False


def _factor_of_variable(source: SourceFile, name: str, loop: ast.For) -> float | None:
    """Return the factor of ``rate *= 0.9`` in a loop, if nothing else in the file sets this variable again."""
    for each in loop.body:
        match each:
            case (
                ast.AugAssign(target=ast.Name(id=target), op=ast.Mult(), value=value)
                | ast.Assign(
                    targets=[ast.Name(id=target)], value=ast.BinOp(left=ast.Name(id=_), op=ast.Mult(), right=value)
                )
            ) if target == name:
                others = [e for e in assigned_in(function_of(source, loop), name) if not isinstance(e, ast.BinOp)]
                return _constant(source, value) if len(others) < 2 else None
            case _:
                pass
    return None


def _is_rate(node: ast.expr) -> bool:
    """Return True for ``group["lr"]``."""
    match node:
        case ast.Subscript(slice=ast.Constant(value="lr"), value=owner):
            return isinstance(owner, ast.Name) or "param_groups" in ast.unparse(owner)
        case _:
            return False


def _constant(source: SourceFile, node: ast.expr) -> float | None:
    """Return the value of a number, or of a variable that is assigned one number."""
    if isinstance(node, ast.Name):
        values = assigned_in(source.tree, node.id)
        node = values[0] if len(values) == 1 else node
    is_number = isinstance(node, ast.Constant) and isinstance(node.value, int | float)
    return float(node.value) if is_number else None  # type: ignore[attr-defined, arg-type]


def _is_set_elsewhere(source: SourceFile) -> bool:
    """Return True if the file sets the rate of a parameter group to something else too, as a warm restart does."""
    for each in source.nodes_of(ast.Assign):
        if any(_is_rate(target) for target in each.targets):
            old = any(isinstance(part, ast.Subscript) and _is_rate(part) for part in walk(each.value))
            if not old and not isinstance(each.value, ast.Name):
                return True
    return False


def schedulers_per_batch(source: SourceFile) -> Iterator[tuple[Any, AbstractValue, float]]:
    """Yield each step of an exponential schedule in every iteration of a loop over batches, with its factor."""
    for advance in source.ops(OpKind.SCHEDULER_STEP):
        factor = _factor_of_scheduler(advance.subject)
        loop = advance.loops[-1] if advance.loops and is_statement(advance.loops[-1].node) else None
        if factor is None or loop is None or len(advance.loops) < 2 or not advance.is_unconditional_in(loop):
            continue
        iterable = getattr(loop.node, "iter", None)
        inner = iterable.args[0] if isinstance(iterable, ast.Call) and iterable.args else iterable
        named = isinstance(inner, ast.Name | ast.Attribute) and is_loader(source, inner)
        inside = source.ops_in_loop(loop, OpKind.STEP, root=advance.entry_point)
        optimizer = next(iter(advance.subject.sources), None)
        is_update = any(
            each.is_unconditional_in(loop) and optimizer is not None and each.subject.may_alias(optimizer)
            for each in inside
        )
        if (named or is_batch_loop(loop)) and is_update:
            yield advance.node, advance.subject, factor


def schedulers_in_hooks(source: SourceFile) -> Iterator[tuple[ast.expr, ast.Call, float]]:
    """Yield each step of an exponential schedule in a method that is called after every batch, by its name.

    With the call that creates the scheduler, and its factor.
    """
    for method in source.nodes_of(ast.FunctionDef):
        for statement in _unconditional(method.body, {}) if _BATCH_HOOK.fullmatch(method.name) else ():
            match statement:
                case ast.Expr(value=ast.Call(func=ast.Attribute(attr="step", value=scheduler), args=[]) as step):
                    built = [e for e in origins(source, scheduler) if isinstance(e, ast.Call)]
                    factors = {factor for each in built if (factor := _factor_of_call(source, each)) is not None}
                    if len(built) == len(factors) == 1:
                        yield step, built[0], factors.pop()
                case _:
                    pass


def _factor_of_call(source: SourceFile, call: ast.Call) -> float | None:
    """Return the factor of each step of a new ``ExponentialLR``, perhaps the default of an option; None for others."""
    if source.qualified_name(call.func) != "torch.optim.lr_scheduler.ExponentialLR":
        return None
    number = number_of(source, argument_node(call, "gamma", 1))
    return number if number is not None and 0 < number <= MAX_FACTOR else None


def _factor_of_scheduler(scheduler: AbstractValue) -> float | None:
    """Return the factor of each step of an exponential schedule; None for another one, or for one that hardly falls."""
    names = SCHEDULERS.get(scheduler.name)
    if names is None or scheduler.union or "**" in scheduler.arguments:
        return None
    values = [scheduler.arguments[name].constant() for name in names if name in scheduler.arguments]
    if scheduler.name.endswith("StepLR"):
        size = scheduler.arguments.get("1") or scheduler.arguments.get("step_size")
        values = values or [0.1]
        if size is None or size.constant() != 1:
            return None
    is_known = bool(values) and isinstance(values[0], int | float) and 0 < values[0] <= MAX_FACTOR
    return float(values[0]) if is_known else None
