"""Finds test scores of the last weights, in programs that save the best weights and do not load them for the test."""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.best_values import best_checks, best_flags, choices, saving_uses
from trueloop.analysis.queries.class_instances import called_function, definitions, only_call
from trueloop.analysis.queries.held_out_names import HELD_OUT, TRAINING, data_words
from trueloop.analysis.queries.metric_names import name_words
from trueloop.analysis.queries.possible_values import enclosing_nodes, parameters_of
from trueloop.analysis.source_file import SourceFile, last_name
from trueloop.core.source_text import nodes_in

_TEST: Final = frozenset(("test", "testing", "tst"))
_JUDGING: Final = frozenset((
    "test", "testing", "evaluate", "evaluation", "eval", "validate", "score", "predict", "accuracy", "inference",
))  # fmt: skip
_OTHERS: Final = frozenset(("optim", "optimizer", "opt", "scheduler", "sched", "scaler", "criterion", "ema"))
_MODELS: Final = frozenset(("model", "net", "network", "classifier", "encoder", "decoder"))
_LOADING: Final = re.compile(
    r"(?i)load_?(state|weight|model|checkpoint|best|ckpt|param|from|net)|\bload\(|restor|resume|_pretrained\(|swa_|"
    r"best_?(model|net|state|weight)"
)
_FILES: Final = frozenset(("path", "file", "checkpoint", "ckpt", "weights", "best", "dir"))
_MAX_DEPTH: Final = 3


class LastTested(NamedTuple):
    """A test of a model that has the weights of the last epoch."""

    test: ast.Call
    model: ast.expr
    saved_at: ast.stmt
    """The statement that saves the best weights."""


def last_tested(source: SourceFile) -> Iterator[LastTested]:
    """Yield each test, after the training, of a model whose best weights are in a file that is not loaded."""
    for condition, model in (*_saved_by_condition(source), *_saved_by_stopper(source)):
        after = list(_after_training(source, condition, model))
        if any(_loads(source, each) for each, _ in after):
            continue
        tests = [call for each, owner in after for call in nodes_in(each, ast.Call) if _tests(source, call, owner)]
        if tests:
            yield LastTested(tests[0], model, condition)
            return


def _saved_by_condition(source: SourceFile) -> Iterator[tuple[ast.stmt, ast.expr]]:
    """Yield each statement that saves the best model, unless it is the best by a test value, with the model."""
    found: list[tuple[ast.stmt, ast.expr | None]] = [(each.node, each.value) for each in best_checks(source)]
    found += [(each, flag.value) for flag in best_flags(source) for each in saving_uses(source, flag.name)]
    for condition, value in found:
        if value is None or not data_words(value) & _TEST:
            yield from ((condition, model) for model in _saved_models(source, condition))


def _saved_by_stopper(source: SourceFile) -> Iterator[tuple[ast.stmt, ast.expr]]:
    """Yield each call ``early_stopping(val_loss, model)`` of an object that saves the best model, with the model."""
    known = definitions(source).classes
    stoppers = [ast.unparse(known[each]) for each in known if "stop" in each.lower()]
    for call, value in choices(source) if all("save(" in each for each in stoppers) else ():
        models = call.args[1:] if isinstance(call, ast.Call) and not data_words(value) & _TEST else []
        yield from ((source.statement_of(call), each) for each in models if name_words(last_name(each)) & _MODELS)


def _saved_models(source: SourceFile, condition: ast.stmt) -> Iterator[ast.expr]:
    """Yield each model that a statement saves, also by a method of the same object."""
    body = condition.body if isinstance(condition, ast.If) else [condition]
    for call in (each for part in body for each in nodes_in(part, ast.Call)):
        if "save" not in last_name(call.func).lower():
            continue
        method = called_function(source, call) if last_name(getattr(call.func, "value", None)) == "self" else None
        states = [each.func for each in nodes_in(method or call, ast.Call) if last_name(each.func) == "state_dict"]
        found = [each.value for each in states if isinstance(each, ast.Attribute)]
        found += [each for each in call.args if name_words(last_name(each)) & _MODELS]
        yield from (each for each in found if not name_words(last_name(each)) & _OTHERS)


def _after_training(source: SourceFile, node: ast.stmt, model: ast.expr) -> Iterator[tuple[ast.stmt, ast.expr]]:
    """Yield the loop over epochs around a node and what runs after it, also in callers, with the model's name there."""
    is_in_loop, around, called = False, node, set[int]()
    for _ in range(_MAX_DEPTH):
        function = function_of(source, around)
        loops = [each for each in enclosing_nodes(source, around) if isinstance(each, ast.For | ast.While)]
        if loops:
            epochs = [
                each for each in loops if isinstance(each, ast.For) and "epoch" in ast.unparse(each.target).lower()
            ]
            is_in_loop, around = True, (epochs or loops)[-1]
        if is_in_loop:
            yield from ((each, model) for each in (around, *_next_statements(source, around)))
        call = only_call(source, function)
        owner = _in_caller(source, function, model, call) if call is not None else None
        if call is None or owner is None or id(function) in called:
            return
        called.add(id(function))
        around, model = source.statement_of(call), owner


def _next_statements(source: SourceFile, node: Any) -> Iterator[ast.stmt]:
    """Yield the statements of a function that follow a statement."""
    function = function_of(source, node)
    while isinstance(node, ast.stmt) and node is not function:
        yield from source.following(node)
        node = source.parents.get(id(node))


def _in_caller(source: SourceFile, function: Any, model: ast.expr, call: ast.Call) -> ast.expr | None:
    """Return what a caller of a function calls the model, or the object with the model; None if it is unknown."""
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    if isinstance(model, ast.Attribute):
        is_own = last_name(model.value) == "self" and owner is not None
        is_own &= not name_words(last_name(owner)) & _MODELS  # `model.train()` sets a mode
        return (model if last_name(owner) == "self" else owner) if is_own else None
    names = [each.arg for each in parameters_of(function)]
    if isinstance(source.parents.get(id(function)), ast.ClassDef):
        names = names[1:]
    given = dict(zip(names, call.args, strict=False)) | {each.arg: each.value for each in call.keywords if each.arg}
    return given.get(last_name(model))


def _loads(source: SourceFile, statement: ast.stmt) -> bool:
    """Return True if a statement, or a function that it calls, may load weights or test within the training."""
    calls = list(nodes_in(statement, ast.Call))
    functions = [each for each in (called_function(source, call) for call in calls) if each is not None]
    called = [call for each in functions for call in nodes_in(each, ast.Call)]
    if isinstance(statement, ast.For | ast.While) and any(_is_test(source, each) for each in (*calls, *called)):
        return True
    return any(_LOADING.search(ast.unparse(each)) for each in (statement, *functions))


def _is_test(source: SourceFile, call: ast.Call) -> bool:
    """Return True for a call that judges on test data, by the names in it and of its result."""
    named = name_words(last_name(call.func))
    result = source.parents.get(id(call))
    words = {word for each in (*call.args, *(e.value for e in call.keywords)) for word in data_words(each)}
    targets = data_words(result.targets[0]) if isinstance(result, ast.Assign) else set[str]()
    parts = (words | named | targets) & (HELD_OUT | TRAINING)
    return bool(named & _JUDGING) and bool(parts & _TEST) and not words & (HELD_OUT | TRAINING) - _TEST


def _tests(source: SourceFile, call: ast.Call, model: ast.expr) -> bool:
    """Return True for a call that judges a model on test data."""
    if not _is_test(source, call):
        return False
    text = ast.unparse(model)
    passed = [*call.args, *(each.value for each in call.keywords)]
    if text in map(ast.unparse, passed):
        return not any(data_words(each) & _FILES for each in passed)
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    function = called_function(source, call)
    if isinstance(model, ast.Attribute) and last_name(owner) == "self" and function is not None:
        return text in {ast.unparse(each) for each in nodes_in(function, ast.Attribute)}
    return owner is not None and ast.unparse(owner) == text
