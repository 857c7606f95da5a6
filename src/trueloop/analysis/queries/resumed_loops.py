"""Finds the training loops that go on at a number which the program read together with saved weights."""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.class_instances import definitions
from trueloop.analysis.queries.possible_values import computed_from, enclosing_nodes, in_other_arm, possible_values
from trueloop.analysis.source_file import SourceFile, last_name
from trueloop.core.source_text import encloses, nodes_in

_RESTORING: Final = re.compile(r"(?i)load|resum|restor")
_ON_PURPOSE: Final = re.compile(r"(?i)fine_?tun|transfer|pre_?train|(reset|skip|no|new|ignore)_?\w*optim|warm_?start")
_TRAINING: Final = re.compile(r"(?i)^(backward|fit|step)$|train|optimi[sz]e|update_(param|weight|model)")
_NOT_TRAINED: Final = re.compile(r"(?i)teacher|ema|target|reference|expert|frozen")
_COUNT: Final = re.compile(r"(?i)epoch|iter|step|resum|start|\bep\b")
_SETTINGS: Final = re.compile(r"(?i)^\w*(\.\w+)*(arg|conf|cfg|opt|param|setting|yaml|json)\w*(\.\w+)?\(")
_JUDGING: Final = re.compile(
    r"(?i)(^|[_\W])(test|eval|val|infer|predict|sampl|generat|demo|visual)|(!=\s*.|not [\w.]*)train"
)
_RANGES: Final = frozenset(("range", "trange", "arange"))
_DEPTH: Final = 3


def resumed_loops(source: SourceFile) -> Iterator[tuple[ast.For | ast.While, ast.expr, ast.Call]]:
    """Yield each loop that begins where a saved run stopped, its first number, and the load of the weights."""
    loads = [each for each in source.all_calls if _loads_weights(source, each)]
    for loop, start in _first_numbers(source) if loads else ():
        for number in _origins(source, start, _DEPTH):
            load = next((e for e in loads if _is_read_with(source, number, e) or _is_file_of(source, number, e)), None)
            if load is not None and not encloses(loop, load):
                yield loop, start, load
                break


def _loads_weights(source: SourceFile, call: ast.Call) -> bool:
    """Return True for ``model.load_state_dict(torch.load(path)["model"])`` without a word of fine-tuning around it."""
    owner = last_name(getattr(call.func, "value", None))
    if last_name(call.func) != "load_state_dict" or not call.args or _NOT_TRAINED.search(owner):
        return False
    around = [each.test for each in enclosing_nodes(source, call) if isinstance(each, ast.If)]
    if any(_ON_PURPOSE.search(ast.unparse(each)) for each in (*around, *call.args)):
        return False
    if _ON_PURPOSE.search(getattr(function_of(source, call), "name", "")):
        return False
    nodes = computed_from(source, call.args[0], 2)
    return any(isinstance(each, ast.Call) and last_name(each.func).startswith("load") for each in nodes)


def _first_numbers(source: SourceFile) -> Iterator[tuple[ast.For | ast.While, ast.expr]]:
    """Yield each loop that trains from a number on, ``range(start, end)`` or ``while step < end``, with the number."""
    for loop in source.nodes_of(ast.For, ast.While):
        counts_epochs = isinstance(loop, ast.For) and "epoch" in last_name(loop.target)
        if not counts_epochs and not any(_TRAINING.search(last_name(each.func)) for each in nodes_in(loop, ast.Call)):
            continue
        if isinstance(loop, ast.While):
            test = loop.test
            if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Lt | ast.LtE):
                yield from () if isinstance(test.left, ast.Call) else [(loop, test.left)]
            continue
        calls = [each for each in nodes_in(loop.iter, ast.Call) if last_name(each.func) in _RANGES]
        if calls and len(calls[0].args) > 1:
            yield loop, calls[0].args[0]


def _origins(source: SourceFile, node: ast.expr, depth: int) -> Iterator[ast.expr]:
    """Yield the expressions from which a number may come, also through functions that return it."""
    for each in computed_from(source, node):
        if isinstance(each, ast.expr):
            yield each
        if isinstance(each, ast.Call) and depth:
            for value in possible_values(source, each):
                yield from _origins(source, value, depth - 1)


def _is_read_with(source: SourceFile, number: ast.expr, load: ast.Call) -> bool:
    """Return True for a number that is assigned where weights are loaded, as something that belongs to the file."""
    statement: Any = source.statement_of(number)
    if not isinstance(statement, ast.Assign) or isinstance(statement.value, ast.Constant | ast.UnaryOp):
        return False
    function = function_of(source, statement)
    if function is not function_of(source, load) or _SETTINGS.search(ast.unparse(statement.value)):
        return False
    block = source.block(statement)
    is_next = any(isinstance(each, ast.Expr) and each.value is load for each in block)
    is_plain = isinstance(statement.value, ast.Name | ast.Attribute)
    if is_plain or not _RESTORING.search(getattr(function, "name", "")):  # in a larger function: in one `if`, or read
        is_conditional = not isinstance(source.parents.get(id(statement)), ast.FunctionDef | ast.Module)
        return is_next and (is_conditional or not is_plain)
    return any(encloses(each, load) for each in block)


def _is_file_of(source: SourceFile, number: ast.expr, load: ast.Call) -> bool:
    """Return True for a number that names the file of the weights, or that is set to 0 where there is no file.

    As in ``torch.load(f"net_{opt.epoch}.pt")`` before ``range(opt.epoch, opt.epochs)``.
    """
    around = source.parents.get(id(number))
    if not isinstance(number, ast.Name | ast.Attribute | ast.Subscript) or isinstance(around, ast.Attribute):
        return False
    text = ast.unparse(number)
    if not _COUNT.search(text) or _is_for_judging(source, load):
        return False
    named = computed_from(source, load.args[0])
    if any(isinstance(each, type(number)) and ast.unparse(each) == text for each in named):
        return True
    resets = [
        each
        for each in nodes_in(function_of(source, load), ast.Assign)
        if ast.unparse(each.targets[0]) == text and isinstance(each.value, ast.Constant)
    ]
    return any(in_other_arm(source, each, load) for each in resets)


def _is_for_judging(source: SourceFile, load: ast.Call) -> bool:
    """Return True for weights that are loaded to evaluate or to use a model, not to train it."""
    function = function_of(source, load)
    name = getattr(function, "name", "")
    calls = definitions(source).calls.get(name, []) if definitions(source).functions.get(name) is function else []
    tests = [e.test for each in (load, *calls) for e in enclosing_nodes(source, each) if isinstance(e, ast.If)]
    if any(map(_JUDGING.search, (name, *map(ast.unparse, tests)))):
        return True
    callers = [getattr(function_of(source, each), "name", "") for each in calls]
    return bool(callers) and all(map(_JUDGING.search, callers))
