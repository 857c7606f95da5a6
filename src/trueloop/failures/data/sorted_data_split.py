"""Data that is sorted by class is split at a position, so the held-out part has classes that the training part lacks.

What you see
    The training loss falls to zero and the held-out accuracy is 0, or near it, from the first epoch to the last.

Why it happens
    Some datasets list one class after the other: Iris and wine in scikit-learn, and arrays that were joined class by
    class. ``x[:100]`` then holds the first classes only, and ``x[100:]`` the last one.

Fix
    Shuffle before the split, the same way for inputs and labels, or split each class:

        x_train, x_test, y_train, y_test = train_test_split(x, y, stratify=y)

When this is fine
    - The rows were put in a random order before the split.
    - The held-out class is meant to be unknown in training, as for outlier detection: name it so.

How it is detected
    Only the linter finds it, from the source code: labels that are ``load_iris`` or ``load_wine``, or are joined from
    equal labels (``zeros`` and ``ones``, ``[0] * n + [1] * n``, ``repeat``, also in a loop over the classes), are split
    into ``y[:n]`` and ``y[n:]``, and no earlier line draws a random order. Or such labels go through ``KFold`` or
    ``train_test_split`` without a shuffle.

References
    sklearn.model_selection.train_test_split,
    https://scikit-learn.org/stable/modules/generated/sklearn.model_selection.train_test_split.html
"""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import function_of, is_label
from trueloop.analysis.queries.possible_values import known_constant, possible_values
from trueloop.analysis.queries.sorted_labels import sorted_origin
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_RANDOM: Final = frozenset((
    "randperm", "permutation", "permuted", "shuffle", "train_test_split", "random_split", "choice", "sample", "argsort",
))  # fmt: skip
_UNKNOWN: Final = re.compile(
    r"outlier|anomal|novel|ood|open.?set|unseen|zero.?shot|continual|task|increment", re.IGNORECASE
)


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each split of labels that are sorted by class."""
    yield from source.hits_unless(_UNKNOWN, _unshuffled_splits(source))
    yield from source.hits_unless(_UNKNOWN, _splits_at_position(source))


def _splits_at_position(source: SourceFile) -> Iterator[Hit]:
    """Yield each split at a position of labels that are sorted by class."""
    parts: dict[tuple[int, str], dict[str, ast.Subscript]] = {}
    for node in source.nodes_of(ast.Subscript):
        match node:
            case ast.Subscript(value=ast.Name() | ast.Attribute() as labels, slice=ast.Slice(step=None) as part):
                bound = part.upper or part.lower
                if bound is not None and (part.upper is None) != (part.lower is None) and is_label(labels):
                    key = id(function_of(source, node)), ast.unparse(labels)
                    parts.setdefault(key, {})[f"{part.upper is None} {ast.unparse(bound)}"] = node
            case _:
                pass
    for found in parts.values():
        for text, first in found.items():
            rest = found.get(text.replace("False ", "True ", 1)) if text.startswith("False ") else None
            if rest is None or _is_mixed(source, first):
                continue
            origin = sorted_origin(source, first.value)
            if origin is not None:
                yield Hit(
                    message=f"`{ast.unparse(first.value)}` is sorted by class, and split at a position: "
                    f"`{ast.unparse(rest)}` has classes that `{ast.unparse(first)}` lacks.",
                    node=first,
                    related=((origin, "one class after the other"), (rest, "the other part")),
                )


def _unshuffled_splits(source: SourceFile) -> Iterator[Hit]:
    """Yield each split by scikit-learn that keeps the order of labels that are sorted by class."""
    for call in source.all_calls:
        shuffles = _shuffles(source, call)
        if last_name(call.func) == "train_test_split" and shuffles == [False]:
            labels: list[ast.expr] = [each for each in call.args if is_label(each)]
        elif last_name(call.func) == "KFold" and shuffles in ([], [False]):
            labels = list(_labels_of_folds(source, call))
        else:
            continue
        for each in labels[:1]:
            origin = None if _is_mixed(source, each) else sorted_origin(source, each)
            if origin is not None:
                yield Hit(
                    message=f"`{ast.unparse(each)}` is sorted by class, and `{last_name(call.func)}` does not shuffle "
                    "here: the held-out part has classes that the training part lacks.",
                    node=call,
                    related=((origin, "one class after the other"),),
                )


def _shuffles(source: SourceFile, call: ast.Call) -> list[Any]:
    """Return the argument ``shuffle`` of a call, if it has one."""
    return [known_constant(source, each.value) for each in call.keywords if each.arg == "shuffle"]


def _labels_of_folds(source: SourceFile, folds: ast.Call) -> Iterator[ast.expr]:
    """Yield the labels that a loop over the splits of ``KFold`` indexes by its variables."""
    for loop in source.nodes_of(ast.For):
        split = next((each for each in nodes_in(loop.iter, ast.Call) if last_name(each.func) == "split"), None)
        owner = split.func.value if split is not None and isinstance(split.func, ast.Attribute) else None
        if owner is None or (owner is not folds and folds not in possible_values(source, owner)):
            continue
        rows = {each.id for each in nodes_in(loop.target, ast.Name)}
        for each in nodes_in(loop, ast.Subscript):
            if isinstance(each.slice, ast.Name) and each.slice.id in rows and is_label(each.value):
                yield each.value


def _is_mixed(source: SourceFile, node: ast.expr) -> bool:
    """Return True if an earlier line of the same file draws a random order."""
    drawn = [e for e in source.all_calls if last_name(e.func) in _RANDOM and e.lineno <= node.lineno]
    drawn = [each for each in drawn if _shuffles(source, each) != [False]]
    return any(source.module_of(each.lineno) is source.module_of(node.lineno) for each in drawn)


RULE = Rule(required_words=("load_iris|load_wine|zeros(|[0]|repeat", "[:|KFold(|shuffle&False", "torch"), find=find)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
x = torch.cat([torch.randn(100, 4) - 2, torch.randn(100, 4) + 2])
y = torch.cat([torch.zeros(100), torch.ones(100)]).long()
x_train, y_train = x[:100], y[:100]
x_test, y_test = x[100:], y[100:]
model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(5):
    for rows in torch.randperm(100).split(20):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x_train[rows]), y_train[rows]).backward()
        optimizer.step()
with torch.no_grad():
    print((model(x_test).argmax(1) == y_test).float().mean().item())
"""

FAILURE = Failure(
    code="DAT045",
    title="Data that is sorted by class is split at a position",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(
        BAD,
        {
            "x_train, y_train = x[:100], y[:100]": (
                "order = torch.randperm(200)\nx, y = x[order], y[order]\nx_train, y_train = x[:100], y[:100]"
            )
        },
    ),
    fix="Put inputs and labels in the same random order before the split.",
    rule=RULE,
)
