"""Finds the training loops that go on at a number which the program read together with saved weights."""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.possible_values import computed_from, enclosing_nodes, possible_values
from trueloop.analysis.source_file import SourceFile, last_name
from trueloop.core.source_text import encloses, nodes_in

_RESTORING: Final = re.compile(r"(?i)load|resum|restor")
_ON_PURPOSE: Final = re.compile(r"(?i)fine_?tun|transfer|pre_?train|(reset|skip|no|new|ignore)_?\w*optim|warm_?start")
_TRAINING: Final = re.compile(r"(?i)^(backward|fit|step)$|train|optimi[sz]e|update_(param|weight|model)")
_NOT_TRAINED: Final = re.compile(r"(?i)teacher|ema|target|reference|expert|frozen")
_RANGES: Final = frozenset(("range", "trange", "arange"))
_DEPTH: Final = 3


def resumed_loops(source: SourceFile) -> Iterator[tuple[ast.For | ast.While, ast.expr, ast.Call]]:
    """Yield each loop that begins where a saved run stopped, its first number, and the load of the weights."""
    loads = [each for each in source.all_calls if _loads_weights(source, each)]
    for loop, start in _first_numbers(source) if loads else ():
        for number in _origins(source, start, _DEPTH):
            load = next((each for each in loads if _is_read_with(source, number, each)), None)
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
            if isinstance(loop.test, ast.Compare) and isinstance(loop.test.ops[0], ast.Lt | ast.LtE):
                yield loop, loop.test.left
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
    if function is not function_of(source, load):
        return False
    block = source.block(statement)
    is_next = any(isinstance(each, ast.Expr) and each.value is load for each in block)
    is_plain = isinstance(statement.value, ast.Name | ast.Attribute)
    if is_plain or not _RESTORING.search(getattr(function, "name", "")):  # in a larger function: in one `if`, or read
        is_conditional = not isinstance(source.parents.get(id(statement)), ast.FunctionDef | ast.Module)
        return is_next and (is_conditional or not is_plain)
    return any(encloses(each, load) for each in block)
