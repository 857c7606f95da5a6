"""A figure of the training is kept, logged or saved under the name of the validation, or the other way round.

What you see
    The training and the validation curve are the same line, or the saved test results are those of the training.

Why it happens
    A line was copied, and only one of its two names was changed. Both variables exist, so nothing fails.

Fix
    Pass the value that the name tells.

        writer.add_scalar("loss/train", train_loss, epoch)
        writer.add_scalar("loss/val", val_loss, epoch)

When this is fine
    - There is no validation set, so the training value is shown: no variable of the other name exists.
    - The name tells both: ``train_acc_at_best_val``.

How it is detected
    Only the linter finds it: a text, key, keyword or list with the word train gets a loss, accuracy or other figure
    with the word val, test, dev or eval, or the other way round, while the same function has a variable of the right
    name.

References
    torch.utils.tensorboard.SummaryWriter.add_scalar, https://docs.pytorch.org/docs/stable/tensorboard.html
"""

import ast
import re
from collections.abc import Iterator, Set
from itertools import pairwise
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import function_of, without_conversions
from trueloop.analysis.queries.held_out_names import data_words
from trueloop.analysis.queries.metric_names import WORDS, name_words
from trueloop.analysis.queries.possible_values import enclosing_nodes
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_HELD_OUT: Final = frozenset(("val", "valid", "validation", "test", "testing", "dev", "eval"))
_TRAINING: Final = frozenset(("train", "training", "trn"))
_PARTS: Final = _HELD_OUT | _TRAINING
_FIGURES: Final = frozenset({w for words in WORDS.values() for w in words} | {
    "accuracies", "aucs", "errors", "errs", "f1s", "hist", "history", "rewards", "returns", "score", "scores", "metric",
    "metrics", "rmses", "perplexities", "mious", "dices",
})  # fmt: skip
_SHOWING: Final = re.compile(
    r"add_scalar|save|savetxt|savez?|dump|plot|print|log\w*|info|append|report\w*|track|scalar"
)


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each figure that is kept, logged or saved under the name of the other part of the data."""
    for node in source.nodes_of(ast.Call, ast.Dict, ast.JoinedStr, ast.Assign):
        for label, value in _named_figures(node):
            own = data_words(value)
            other = _HELD_OUT if own & _TRAINING else _TRAINING
            if not _is_other(label, own) or not own & _FIGURES or _is_stand_in(source, node):
                continue
            right = _of_part(source, value, own - _PARTS, other)
            if right:
                yield Hit(
                    message=f"`{ast.unparse(value)}` has the name of the other part here: `{right}` is a variable too.",
                    node=value,
                )


def _is_other(label: Set[str], own: Set[str]) -> bool:
    """Return True if a label names one part of the data, and a value the other part."""
    named, held = bool(label & _TRAINING), bool(own & _HELD_OUT)
    is_single = named != bool(label & _HELD_OUT) and held != bool(own & _TRAINING)
    return is_single and named == held


def _named_figures(node: Any) -> Iterator[tuple[set[str], ast.expr]]:
    """Yield each value that gets a name, with the words of that name."""
    match node:
        case ast.Dict(keys=keys, values=values):
            pairs: list[tuple[Any, ast.expr]] = [*zip(keys, values, strict=True)]
        case ast.Assign(targets=[ast.Subscript(value=owner, slice=ast.Constant() as key)], value=value):
            pairs = [(key, value)] if not data_words(owner) & _PARTS else []
        case ast.JoinedStr(values=parts):
            texts = pairwise(parts)
            pairs = [(one, other.value) for one, other in texts if isinstance(other, ast.FormattedValue)]
        case ast.Call(func=ast.Attribute(attr="append", value=kept), args=[value]):
            pairs = [(kept, value)]
        case ast.Call(func=func, args=args) if _SHOWING.fullmatch(last_name(func)):
            figures = [each for each in args if not _texts(each)]
            named = [each for each in args if _texts(each)]
            named += [each.value for each in node.keywords if each.arg == "label"]
            is_pair = len(named) == 1 and sum(bool(data_words(each) & _PARTS) for each in figures) == 1
            pairs = [(named[0], each) for each in figures if is_pair]
        case _:
            return
    for label, value in pairs:
        figure = without_conversions(value)
        if label is not None and isinstance(figure, ast.Name | ast.Attribute):
            yield {word for text in (*_texts(label), *_path(label)) for word in name_words(text)}, figure


def _texts(node: ast.AST) -> list[str]:
    return [each.value for each in nodes_in(node, ast.Constant) if isinstance(each.value, str)]


def _path(node: ast.AST) -> list[str]:
    return [last_name(each) for each in nodes_in(node, ast.Name, ast.Attribute)]


def _is_stand_in(source: SourceFile, node: ast.AST) -> bool:
    """Return True under a condition on one of the parts: ``if val_loader is None``."""
    return any(
        (data_words(each.test) | {w for text in _texts(each.test) for w in name_words(text)}) & _PARTS
        for each in enclosing_nodes(source, node)
        if isinstance(each, ast.If | ast.IfExp)
    )


def _of_part(source: SourceFile, value: ast.expr, rest: Set[str], part: Set[str]) -> str:
    """Return the variable that the same function has for the other part of the data; "" if there is none."""
    names = {last_name(each) for each in nodes_in(function_of(source, value), ast.Name, ast.Attribute)}
    fitting = [each for each in names if (words := name_words(each)) & part and words - _PARTS == rest]
    return min(fitting, default="")


RULE: Final = Rule(
    required_words=("train|Train", "val|Val|test|Test|dev|eval", "append|add_scalar|log|save|dump|plot|print|:"),
    find=find,
)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
x, x_val = torch.randn(128, 8), torch.randn(64, 8)
y, y_val = x.sum(1, keepdim=True), x_val.sum(1, keepdim=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
history = {"train_loss": [], "val_loss": []}
for epoch in range(8):
    optimizer.zero_grad()
    train_loss = nn.functional.mse_loss(model(x), y)
    train_loss.backward()
    optimizer.step()
    with torch.no_grad():
        val_loss = nn.functional.mse_loss(model(x_val), y_val)
    history["train_loss"].append(train_loss.item())
    history["val_loss"].append(train_loss.item())
print(history)
"""

FAILURE = Failure(
    code="EVL036",
    title="A training figure has the name of the validation",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {'history["val_loss"].append(train_loss': 'history["val_loss"].append(val_loss'}),
    fix="Pass the value that the name tells: the validation loss under the name of the validation.",
    rule=RULE,
)
