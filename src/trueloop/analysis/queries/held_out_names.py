"""Tells from the names in an expression whether it is training data or held-out data."""

import ast
import re
from typing import Final

from trueloop.analysis.queries.metric_names import name_words
from trueloop.analysis.source_file import last_name
from trueloop.core.source_text import dotted_name, nodes_in

HELD_OUT: Final = frozenset((
    "val", "valid", "validation", "vali", "va", "test", "testing", "tst", "te", "ts", "eval", "evaluation", "dev",
    "held", "heldout", "holdout", "unseen",
))  # fmt: skip
TRAINING: Final = frozenset(("train", "training", "trainval", "trn", "tr"))
_PART_NAME: Final = re.compile(
    r"(^|_|(?<=[a-z0-9])(?=[A-Z])|(?<=^[xyXY]))(train(ing)?|trn|tr|test|tst|te|ts|val(id(ation)?)?|va|v|eval|dev|held(_?out)?|holdout)(_|$)",
    re.IGNORECASE,
)


def data_words(node: ast.AST) -> set[str]:
    """Return the words of all names in an expression: {"x", "test"} for ``X_test[0]``, {"test"} for ``Xtest``."""
    names = [last_name(each) for each in nodes_in(node, ast.Name, ast.Attribute)]
    words = {word for name in names for word in name_words(name)}
    return {word[1:] if word[1:] in HELD_OUT | TRAINING and word[0] in "xy" else word for word in words}


def is_held_out(node: ast.AST) -> bool:
    """Return True for data that is called test or validation data, and not training data."""
    words = data_words(node)
    return bool(words & HELD_OUT) and not words & TRAINING


def is_training(node: ast.AST) -> bool:
    """Return True for data that is called training data, and not test or validation data."""
    words = data_words(node)
    return bool(words & TRAINING) and not words & HELD_OUT


def is_other_part(name: str, other: ast.expr) -> bool:
    """Return True if a variable holds the held-out part of data: ``x_test`` for "x_train", ``Xv`` for "X"."""
    path = dotted_name(other)
    if not path or path == name or is_training(other):
        return False
    is_named = is_held_out(other) or path in (f"{name}v", f"{name}t")
    return is_named and _PART_NAME.sub("", path).lower().rstrip("v") == _PART_NAME.sub("", name).lower()
