"""Finds held-out rows that were sampled from a table or list on which the model is then trained as a whole."""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.held_out_names import data_words, is_held_out, is_training
from trueloop.analysis.queries.method_chains import without_calls
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import nodes_in

_UNCHANGED: Final = frozenset(("reset_index", "copy", "sort_index", "sort_values", "list", "set", "sorted"))
_REMOVING: Final = re.compile(
    r"\.index\b|drop|difference|setdiff|isin\(|not in|remove|\.pop\(|delete|\bdel |merge|mask|~| - |-=|symmetric"
)
_PARTS: Final = frozenset(("val", "valid", "validation", "vali", "test", "dev", "holdout", "heldout"))

_STATEMENTS: Final = (ast.Assign, ast.AugAssign, ast.Expr, ast.Delete, ast.Return)


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each sample of held-out rows that the program does not take out of the training data."""
    for statement in source.nodes_of(ast.Assign):
        target = statement.targets[0]
        if not isinstance(target, ast.Name | ast.Attribute) or not is_held_out(target):
            continue
        call = _without_methods(statement.value)
        data = _sampled(call) if data_words(target) & _PARTS else None
        use = _training_use(source, statement, data) if data is not None else None
        if data is not None and use is not None and not _is_removed(source, statement, data):
            yield Hit(
                message=f"`{ast.unparse(target)}` is a sample of `{ast.unparse(data)}`, and nothing takes these rows "
                f"out of `{ast.unparse(data)}`, which the model is trained on.",
                node=call,
                related=((use, "used for the training"),),
            )


def _without_methods(value: ast.expr) -> ast.expr:
    """Return ``table.sample(frac=0.1)`` for ``table.sample(frac=0.1).reset_index()`` or ``list(...)`` of it."""
    inner = without_calls(value, _UNCHANGED)
    while isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute) and inner.func.attr in _UNCHANGED:
        inner = without_calls(inner.func.value, _UNCHANGED)
    return inner


def _sampled(call: ast.expr) -> ast.expr | None:
    """Return the table of ``table.sample(frac=0.1)`` or the list of ``random.sample(rows, 100)``; None for others."""
    given = {each.arg: each.value for each in call.keywords} if isinstance(call, ast.Call) else {}
    match call:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="random"), attr="sample"), args=[data, _]):
            is_part = is_training(data)
        case ast.Call(func=ast.Attribute(value=ast.Name() | ast.Attribute() as data, attr="sample")):
            is_whole = getattr(given.get("frac"), "value", None) == 1
            is_part = "frac" in given or (is_training(data) and bool(call.args or "n" in given))
            is_part = is_part and not is_whole
        case _:
            return None
    return data if is_part and isinstance(data, ast.Name | ast.Attribute) else None


def _training_use(source: SourceFile, statement: ast.stmt, data: ast.expr) -> ast.AST | None:
    """Return a later use of the data for a training set or loader, or a sample of it; None if it is assigned again."""
    text, function = ast.unparse(data), function_of(source, statement)
    for each in nodes_in(function, ast.Assign):
        other = _sampled(_without_methods(each.value)) if is_training(each.targets[0]) else None
        if other is not None and ast.unparse(other) == text:
            return each
    uses = [each for each in nodes_in(function, ast.Name, ast.Attribute) if ast.unparse(each) == text]
    later = [each for each in uses if each.lineno > statement.lineno]
    if any(isinstance(each.ctx, ast.Store) for each in later):
        return None
    for each in later:
        user: Any = source.statement_of(each)
        is_assigned = isinstance(user, ast.Assign) and is_training(user.targets[0])
        calls = [call for call in nodes_in(user, ast.Call) if any(each is given for given in call.args)]
        is_fitted = any(re.match(r"(?i)_?(train|fit)", last_name(call.func)) for call in calls)
        if isinstance(each.ctx, ast.Load) and (is_fitted or (is_assigned and calls)):
            return each
    return None


def _is_removed(source: SourceFile, statement: ast.Assign, data: ast.expr) -> bool:
    """Return True if another statement may take the held-out rows out of the data."""
    name = ast.unparse(statement.targets[0])
    word = re.compile(rf"(?<![\w.]){re.escape(name)}(?!\w)")
    others = [each for each in source.nodes_of(*_STATEMENTS) if each is not statement]
    texts = [ast.unparse(each) for each in others]
    texts += [ast.unparse(each) for each in source.nodes_of(ast.For) if word.search(ast.unparse(each.iter))]
    return any(word.search(text) and _REMOVING.search(text) for text in texts)
