"""Finds the schedules that a program computes itself: classes that set the learning rate, and functions of LambdaLR."""

import ast
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from trueloop.analysis.abstract_value import MANAGED, AbstractValue, ValueKind
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.queries.possible_values import parameters_of
from trueloop.analysis.source_file import SourceFile, last_name
from trueloop.core.source_text import dotted_name, encloses, nodes_in

_COUNTERS: Final = frozenset(("self.last_epoch", "self._step_count"))
"""The counters of PyTorch's schedulers."""
_ROUNDING: Final = frozenset(("max", "min", "float", "int", "abs", "round"))


class OwnAdvance(NamedTuple):
    """One step of a schedule."""

    operation: Op
    """An operation of the step, with its loops and conditions."""
    call: ast.expr
    """``schedule.step()``."""
    optimizers: tuple[AbstractValue, ...]
    lengths: tuple[ast.expr, ...]
    """The variables and attributes by which the schedule divides the number of its steps."""


def own_advances(source: SourceFile) -> Iterator[OwnAdvance]:
    """Yield the steps of schedules whose learning rates the program computes from the number of steps."""
    for advance in source.ops(OpKind.SCHEDULER_STEP):
        scheduler = advance.subject
        if scheduler.kind is ValueKind.SCHEDULER and not advance.inputs and MANAGED not in scheduler.facts:
            lengths = _lengths_of_scheduler(source, scheduler)
            yield OwnAdvance(advance, advance.node, scheduler.sources[:1], tuple(lengths))
    classes = {id(each): counters for each in source.nodes_of(ast.ClassDef) if (counters := _counters(each))}
    for operation in source.ops(OpKind.SET_ATTRIBUTE) if classes else ():
        definition: Any = getattr(operation.subject.scope, "node", None)
        counter = dotted_name(operation.node)
        if counter not in classes.get(id(definition), ()) or not _is_count(operation.statement):
            continue
        calls = zip(operation.calls, operation.functions, strict=True)
        call = next((each for each, function in calls if encloses(definition, function)), None)
        optimizers = [e for e in operation.subject.attributes.values() if e.kind is ValueKind.OPTIMIZER]
        if call is not None and optimizers:
            yield OwnAdvance(operation, call, tuple(optimizers), tuple(_lengths(definition, {counter})))


def functions_of_lambda(source: SourceFile, scheduler: AbstractValue) -> list[ast.AST]:
    """Return the function that a LambdaLR gets, and the functions and classes that it names; [] for others."""
    function = scheduler.arguments.get("lr_lambda") or scheduler.arguments.get("1")
    if scheduler.name.rpartition(".")[2] != "LambdaLR" or function is None:
        return []
    if isinstance(function.node, ast.FunctionDef):
        return [function.node]
    names = {last_name(each) for each in nodes_in(function.node, ast.Name, ast.Attribute)}
    return [function.node, *(e for e in source.nodes_of(ast.FunctionDef, ast.ClassDef) if e.name in names)]


def _lengths_of_scheduler(source: SourceFile, scheduler: AbstractValue) -> Iterator[ast.expr]:
    """Yield the lengths of a LambdaLR, or of a class of the program that is derived from a scheduler."""
    definition = getattr(scheduler.scope, "node", None)
    if isinstance(definition, ast.ClassDef):
        yield from _lengths(definition, set(_COUNTERS))
    calls = [each for each in nodes_in(scheduler.node, ast.Call) if last_name(each.func) == "partial"]
    bound = {each.arg: each.value for call in calls for each in call.keywords}
    for function in (each for part in functions_of_lambda(source, scheduler) for each in _called(part)):
        names = [each.arg for each in parameters_of(function)]
        for name in names[names[:1] == ["self"] :][:1]:
            yield from (bound.get(dotted_name(each), each) for each in _lengths(function, {name}))


def _called(part: ast.AST) -> list[Any]:
    """Return the function that computes a rate: the part itself, or the ``__call__`` of a class."""
    if isinstance(part, ast.ClassDef):
        return [each for each in part.body if isinstance(each, ast.FunctionDef) and each.name == "__call__"]
    return [part] if isinstance(part, ast.FunctionDef | ast.Lambda) else []


def _counters(definition: ast.ClassDef) -> set[str]:
    """Return the attributes that a class, which sets the learning rate, only counts: ``self.t += 1``."""
    rates = (e for e in nodes_in(definition, ast.Subscript) if getattr(e.slice, "value", None) == "lr")
    if not any(isinstance(each.ctx, ast.Store) for each in rates):
        return set()
    found, other = set[str](), set[str]()
    for function in (each for each in definition.body if isinstance(each, ast.FunctionDef)):
        for statement in nodes_in(function, ast.Assign, ast.AugAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            names = {dotted_name(each) for target in targets for each in nodes_in(target, ast.Attribute)}
            if _is_count(statement):
                found |= names
            elif function.name not in ("__init__", "load_state_dict", "reset"):
                other |= names
    return found - other


def _is_count(statement: ast.stmt | None) -> bool:
    """Return True for ``self.t += 1`` and ``self.t = self.t + 1``."""
    match statement:
        case ast.AugAssign(op=ast.Add(), value=ast.Constant(value=1)):
            return True
        case ast.Assign(targets=[target], value=ast.BinOp(left=left, op=ast.Add(), right=ast.Constant(value=1))):
            return dotted_name(left) == dotted_name(target) != ""
        case _:
            return False


def _lengths(definition: ast.AST, counters: set[str]) -> Iterator[ast.expr]:
    """Yield the variables and attributes by which a definition divides a counter, or what is left of it."""
    names = {each.id for each in nodes_in(definition, ast.Name) if isinstance(each.ctx, ast.Store)}
    if counters & names:
        return  # the function converts its argument first
    for division in nodes_in(definition, ast.BinOp):
        if not isinstance(division.op, ast.Div):
            continue
        dividend, divisor = _terms(division.left), _terms(division.right)
        if any(dotted_name(each) in counters for each in dividend):
            yield from (each for each in divisor if not isinstance(each, ast.Constant))


def _terms(node: ast.expr) -> list[ast.expr]:
    """Return the variables, attributes and numbers of a sum or difference, also rounded; [] for a product."""
    match node:
        case ast.Name() | ast.Attribute() | ast.Constant():
            return [node]
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub(), right=right):
            parts = [_terms(left), _terms(right)]
        case ast.Call(func=ast.Name(id=name), args=args) if name in _ROUNDING:
            parts = [_terms(each) for each in args]
        case _:
            return []
    return [each for part in parts for each in part] if all(parts) else []
