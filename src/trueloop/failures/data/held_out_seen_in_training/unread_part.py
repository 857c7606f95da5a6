"""Finds scores that are called held out and computed from training data, while nothing reads the held-out part."""

import ast
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.queries.held_out_names import HELD_OUT, is_held_out, is_training
from trueloop.analysis.queries.metric_names import WORDS, name_words
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.source_text import dotted_name, nodes_in

_SCORES: Final = WORDS["max"] | WORDS["min"] | {"score", "scores", "metric", "hits", "correct", "right"}
_ENDINGS: Final = frozenset(("mask", "idx", "index", "indices", "ids", "nodes", "x", "y", "data", "set", "labels"))
_METRICS: Final = ("==", ".eq(", "accuracy", "score", "loss", "error", "mean(", "f1", "auc")


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each score that is called held out, is computed from training data only, and has an unread counterpart."""
    unread: ast.Name | None = None
    for assignment in source.nodes_of(ast.Assign):
        target = assignment.targets[0]
        if not isinstance(target, ast.Name) or not _is_score(target, assignment.value):
            continue
        read = [each for each in nodes_in(assignment.value, ast.Name, ast.Attribute) if dotted_name(each)]
        called = {id(each.func) for each in nodes_in(assignment.value, ast.Call)}
        training = [each for each in read if is_training(each) and id(each) not in called]
        if not training or any(is_held_out(each) for each in read):
            continue
        unread = unread or _unread(source)
        if unread is not None and unread.id != target.id:
            yield Hit(
                message=f"`{target.id}` is computed from `{ast.unparse(training[0])}`, and nothing reads "
                f"`{unread.id}`: the score that is called held out is that of training samples.",
                node=assignment,
                related=((unread, f"`{unread.id}` is created here"),),
            )


def _is_score(target: ast.Name, value: ast.expr) -> bool:
    """Return True for ``test_acc``, and for ``te`` if its value is a metric."""
    words = name_words(target.id)
    if not is_held_out(target):
        return False
    text = ast.unparse(value)
    return bool(words & _SCORES) or (words <= HELD_OUT and any(each in text for each in _METRICS))


def _unread(source: SourceFile) -> ast.Name | None:
    """Return a variable for the held-out part of the data that is assigned and never read."""
    names = source.nodes_of(ast.Name)
    read = {each.id for each in names if not isinstance(each.ctx, ast.Store)}
    read |= {each.attr for each in source.nodes_of(ast.Attribute)}
    return next(
        (
            each
            for each in names
            if isinstance(each.ctx, ast.Store)
            and each.id not in read
            and is_held_out(each)
            and name_words(each.id) & _ENDINGS
        ),
        None,
    )
