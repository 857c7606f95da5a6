"""Finds the comparisons of a new value with the best one so far: ``if val_loss < best_loss``."""

import ast
import math
import re
from collections.abc import Iterable, Iterator
from itertools import permutations
from typing import Any, Final, NamedTuple

from trueloop.analysis.queries.metric_names import metric_name, name_words
from trueloop.analysis.source_file import SourceFile, last_name
from trueloop.core.source_text import dotted_name, encloses, nodes_in, walk

_SAVING: Final = frozenset(("save", "deepcopy", "state_dict", "save_checkpoint", "save_model", "save_pretrained"))
_MAY_SAVE: Final = re.compile(r"(?i)save|checkpoint|copy|state_dict|store|export|dump|snapshot")
_LARGEST: Final = frozenset(("inf", "Inf", "infty", "maxsize", "Infinity"))
LARGE: Final = 999.0  # an initial value that no loss is expected to exceed
MIRRORED: Final = {ast.Lt: "<", ast.LtE: "<", ast.Gt: ">", ast.GtE: ">"}


_COUNTER: Final = re.compile(r"patien|wait|bad|counter|no_?improve|stale|since", re.IGNORECASE)
_STOPPER: Final = re.compile(r"early_?stop|stopper", re.IGNORECASE)


class BestCheck(NamedTuple):
    """An ``if`` that compares a value with the best one so far, and stores the new best value or the model."""

    node: ast.If
    value: ast.expr
    """The new value."""
    best: ast.expr
    """The best value so far, a variable or an attribute."""
    sign: str
    """"<" if the body runs for values below the best one, ">" if for values above it."""
    updates: bool
    """Whether the body assigns the best value."""
    takes_first: bool = False
    """Whether the body also runs where there is no best value yet: ``best is None or loss < best``."""


class BestFlag(NamedTuple):
    """A variable that tells whether a new value is better than the best one so far."""

    name: str
    best: ast.expr
    value: ast.expr | None
    """The new value; None if a branch sets the variable."""


def best_checks(source: SourceFile) -> Iterator[BestCheck]:
    """Yield each comparison with a variable that is called the best, whose body stores the new best value or saves."""
    for node in source.nodes_of(ast.If):
        takes_first = isinstance(node.test, ast.BoolOp) and isinstance(node.test.op, ast.Or)
        for test in _conditions(node.test):
            if not (isinstance(test, ast.Compare) and len(test.ops) == 1 and _sign(test.ops[0])):
                continue
            sign, left, right = _sign(test.ops[0]), _without_margin(test.left), _without_margin(test.comparators[0])
            if is_best(left) and not is_best(right):
                sign, left, right = "<" if sign == ">" else ">", right, left
            if not is_best(right) or is_best(left) or isinstance(left, ast.Constant):
                continue
            stored = [each for each, _ in stores_in(node.body)]
            updates = any(is_same(each, right) for each in stored)
            if updates or any(map(is_best, stored)) or saves_model(node.body):
                yield BestCheck(node, left, right, sign, updates, takes_first)


def best_flags(source: SourceFile) -> Iterator[BestFlag]:
    """Yield each variable that gets True, or the result of a comparison, if the best value is beaten."""
    for statement in source.nodes_of(ast.Assign):
        match statement:
            case ast.Assign(targets=[ast.Name(id=flag)], value=ast.Constant(value=True)):
                stored = [target for target, _ in stores_in(source.block(statement)) if is_best(target)]
                around = source.parents.get(id(statement))
                stored = [each for each in stored if "best" not in flag or last_name(each) != flag]
                if stored and isinstance(around, ast.If):
                    yield BestFlag(flag, stored[0], None)
            case ast.Assign(targets=[ast.Name(id=flag)], value=value):
                tests = [each for each in nodes_in(value, ast.Compare) if type(each.ops[0]) in MIRRORED]
                sides = [pair for e in tests for pair in permutations((e.left, e.comparators[0])) if is_best(pair[0])]
                for best, new in sides if not isinstance(value, ast.Call | ast.IfExp) else ():
                    yield BestFlag(flag, best, new)
            case _:
                pass


def saving_uses(source: SourceFile, flag: str) -> Iterator[Any]:
    """Yield each statement that saves if a variable is True, as ``save(state, is_best)`` does."""
    for name in source.nodes_of(ast.Name):
        if name.id != flag or not isinstance(name.ctx, ast.Load):
            continue
        statement: Any = source.statement_of(name)
        if isinstance(statement, ast.If) and encloses(statement.test, name):
            if any(may_save(each) for part in statement.body for each in nodes_in(part, ast.Call)):
                yield statement
        elif any(may_save(each) for each in nodes_in(statement, ast.Call)):
            yield statement


def may_save(call: ast.Call) -> bool:
    """Return True for a call that, by its name, saves something or copies it."""
    return _MAY_SAVE.search(last_name(call.func)) is not None


def is_same(one: ast.expr, other: ast.expr) -> bool:
    """Return True for the same variable, or for attributes of the same name."""
    if isinstance(one, ast.Attribute) and isinstance(other, ast.Attribute):
        return one.attr == other.attr
    if isinstance(one, ast.Name) or isinstance(other, ast.Name):
        return getattr(one, "id", "") == getattr(other, "id", None)
    return ast.unparse(one) == ast.unparse(other)


def stores_in(block: list[ast.stmt]) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """Yield each target that the statements of a block assign, as `stores` does."""
    return stores(inner for each in block for inner in walk(each))


def stores(nodes: Iterable[ast.AST]) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """Yield each target that some nodes, without those below them, assign, with its value; None if it is unknown."""
    for node in nodes:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                yield from _pairs(target, node.value)
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr):
            yield node.target, node.value
        elif isinstance(node, ast.AugAssign):
            yield node.target, None
        elif isinstance(node, ast.For | ast.comprehension):
            yield from _pairs(node.target, None)
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            yield node.optional_vars, None


def initial_number(value: ast.expr | None) -> float | None:
    """Return the number that an expression without variables is, perhaps infinite; None if it is computed."""
    if value is None:
        return None
    if isinstance(value, ast.UnaryOp) and isinstance(value.op, ast.USub):
        number = initial_number(value.operand)
        return None if number is None else -number
    if isinstance(value, ast.Constant):
        is_number = isinstance(value.value, int | float) and not isinstance(value.value, bool)
        return float(value.value) if is_number else None  # type: ignore[arg-type]
    if isinstance(value, ast.Call):
        is_float = dotted_name(value.func).rpartition(".")[2] in ("float", "tensor", "array", "Inf")
        text = value.args[0] if is_float and len(value.args) == 1 else None
        if isinstance(text, ast.Constant) and isinstance(text.value, str):
            word = text.value.lower().strip().lstrip("+")
            return {"inf": math.inf, "-inf": -math.inf, "infinity": math.inf, "-infinity": -math.inf}.get(word)
        return initial_number(text)
    return math.inf if last_name(value) in _LARGEST else None


def is_huge(number: float) -> bool:
    """Return True for an initial value above any expected loss."""
    return number >= LARGE


def is_parameter(source: SourceFile, node: ast.AST, name: ast.expr) -> bool:
    """Return True if a name is a parameter of a function around a node."""
    functions = list(source.nodes_of(ast.FunctionDef, ast.AsyncFunctionDef))
    parameters = [p.arg for each in functions if encloses(each, node) for p in nodes_in(each.args, ast.arg)]
    return isinstance(name, ast.Name) and name.id in parameters


def saves_model(body: list[ast.stmt]) -> bool:
    """Return True if statements save the state of a model, or copy it."""
    calls = [each for statement in body for each in nodes_in(statement, ast.Call)]
    return any(last_name(each.func) in _SAVING for each in calls)


def _pairs(target: ast.expr, value: ast.expr | None) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    if isinstance(target, ast.Tuple | ast.List):
        parts = value.elts if isinstance(value, ast.Tuple | ast.List) else ()
        for number, each in enumerate(target.elts):
            yield from _pairs(each, parts[number] if len(parts) == len(target.elts) else None)
    else:
        yield target, value


def _conditions(test: ast.expr) -> list[ast.expr]:
    """Return the conditions that must all be true, if there is a best value already."""
    if not isinstance(test, ast.BoolOp):
        return [test]
    others = [each for each in test.values if not _is_first(each)]
    return test.values if isinstance(test.op, ast.And) else others if len(others) == 1 else [test]


def _is_first(test: ast.expr) -> bool:
    """Return True for a test whether there is no best value yet: ``not best``, ``best is None`` or ``epoch == 0``."""
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=value):
            return is_best(value)
        case ast.Compare(ops=[ast.Is() | ast.Eq()], comparators=[ast.Constant()]):
            return True
        case _:
            return False


def _sign(operator: ast.cmpop) -> str:
    return next((sign for kind, sign in MIRRORED.items() if isinstance(operator, kind)), "")


def _without_margin(node: ast.expr) -> ast.expr:
    """Return the best value of ``best - margin``; any other expression unchanged."""
    is_moved = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub) and is_best(node.left)
    return node.left if is_moved else node  # type: ignore[attr-defined]


def is_best(node: ast.expr) -> bool:
    """Return True for a variable, attribute or item that is called the best."""
    return "best" in name_words(metric_name(node)) and not isinstance(node, ast.Call)


def choices(source: SourceFile) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield each comparison, and each call of an object for early stopping, with the value by which it chooses."""
    for check in best_checks(source):
        if _stops_or_saves(check.node):
            yield check.node.test, check.value
    for call in source.all_calls:
        owner = call.func.value if isinstance(call.func, ast.Attribute) else call.func
        if _STOPPER.search(last_name(owner)) and call.args:
            yield call, call.args[0]


def _stops_or_saves(check: ast.If) -> bool:
    """Return True if a comparison saves the model, or counts the epochs without a better value."""
    counted = nodes_in(check, ast.Assign, ast.AugAssign)
    targets = [t for each in counted for t in (each.targets if isinstance(each, ast.Assign) else [each.target])]
    return saves_model(check.body) or any(_COUNTER.search(last_name(each)) for each in targets)
