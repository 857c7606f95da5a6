"""Tells from the name of a variable whether it should rise, like an accuracy, or fall, like a loss."""

import ast
import re
from functools import lru_cache
from typing import Any, Final

from trueloop.core.source_text import nodes_in

WORDS: Final = {
    "max": frozenset((
        "acc", "accs", "accuracy", "auc", "auroc", "bleu", "correct", "dice", "f1", "iou", "map", "miou", "precision",
        "psnr", "r2", "recall", "reward", "ssim",
    )),
    "min": frozenset((
        "cost", "err", "error", "loss", "losses", "mae", "mse", "nll", "perplexity", "ppl", "rmse", "wer",
    )),
}  # fmt: skip
"""Direction of improvement -> words in the names of values that improve in this direction."""
_WORD: Final = re.compile(r"[A-Z]?[a-z]+\d?|[A-Z]+\d?(?![a-z])")
_JOINED: Final = re.compile(r"(train|trn|val|valid|test|tst|dev|eval)(loader|dataloader|set|data|ds|dl)")
"""Two words that are often written as one."""


@lru_cache(maxsize=4096)  # most names of a program occur many times
def name_words(name: str) -> frozenset[str]:
    """Return the words of a name in lower case: {"val", "acc"} for "valAcc", {"val", "loader"} for "valloader"."""
    words = [word.lower() for word in _WORD.findall(name)]
    joined = [match.groups() for word in words if (match := _JOINED.fullmatch(word)) is not None]
    return frozenset(words).union(*joined)


def better_direction(name: str) -> str:
    """Return "max" or "min" if the words of a name tell in which direction it improves; else ""."""
    words = name_words(name)
    found = [direction for direction, direction_words in WORDS.items() if words & direction_words]
    return found[0] if len(found) == 1 else ""


def metric_name(value: Any) -> str:
    """Return the variable or item that an expression reads: "val_acc", "metrics['loss']"; "" for a computation."""
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and not value.args:
        value = value.func.value  # loss.item()
    if isinstance(value, ast.Call) and getattr(value.func, "id", "") == "float" and len(value.args) == 1:
        return metric_name(value.args[0])
    if isinstance(value, ast.Subscript) and isinstance(value.slice, ast.Constant):
        return ast.unparse(value)
    return ast.unparse(value) if isinstance(value, ast.Name | ast.Attribute) else ""


def name_of_computed(function: ast.AST, value: Any) -> str:
    """Return the name of a metric or, if that shows no direction, of the only function whose result is assigned to it.

    Args:
        function: the function or module that assigns the variable.
        value: a variable, such as ``score`` after ``score = mean_iou(model, loader)``.
    """
    name = metric_name(value)
    if better_direction(name) or not isinstance(value, ast.Name):
        return name
    assigned = [
        each.value
        for each in nodes_in(function, ast.Assign)
        if any(getattr(target, "id", "") == value.id for target in each.targets)
    ]
    called = [ast.unparse(each.func).rpartition(".")[2] if isinstance(each, ast.Call) else "" for each in assigned]
    return called[0] if len(called) == 1 else name
