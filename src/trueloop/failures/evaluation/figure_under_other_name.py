"""A figure is logged or stored under the name of another one.

What you see
    The curves of training and validation are the same, or the accuracy looks like a loss. The table of results shows
    the validation score as the test score.

Why it happens
    The line was copied, and only the name or only the value was changed.

Fix
    Log the value that belongs to the name:

        writer.add_scalar("loss/val", train_loss, epoch)  # wrong
        writer.add_scalar("loss/val", val_loss, epoch)    # right

When this is fine
    - A name says both, as ``"train_vs_val"``, or neither.
    - There is no validation set: ``if val_loader is None: history["val_loss"] = train_loss``.
    - The test set stands for the validation set in the whole program: ``log({"val_acc": test_acc})``.

How it is detected
    Only the linter finds it, from the source code: a text that names a figure, in ``add_scalar``, ``log`` and the like,
    as the key of a dictionary or item, or the name of a list, and a variable as its value. The words of the two exclude
    each other: training and held-out, a loss and an accuracy, generator and discriminator. Test and validation exclude
    each other only if the program also has a variable for the figure that the text names. So do training and held-out
    data in a text that is printed, the label of a plot and the name of a file.

References
    pytorch.org, "Visualizing Models, Data, and Training with TensorBoard",
    https://docs.pytorch.org/tutorials/intermediate/tensorboard_tutorial.html
"""

import ast
import re
from collections.abc import Iterator, Set
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import function_of, without_conversions
from trueloop.analysis.queries.held_out_names import data_words
from trueloop.analysis.queries.metric_names import WORDS, metric_name, name_words
from trueloop.analysis.queries.possible_values import enclosing_nodes
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_GROUPS: Final[tuple[dict[str, frozenset[str]], ...]] = (
    {
        "train": frozenset(("train", "training", "tr", "trn")),
        "val": frozenset(("val", "valid", "validation", "dev")),
        "test": frozenset(("test", "testing")),
        "eval": frozenset(("eval", "evaluation")),
    },
    {
        "loss": frozenset(("loss", "losses")),
        "acc": frozenset(("acc", "accs", "accuracy", "accuracies")),
        "f1": frozenset(("f1",)),
        "precision": frozenset(("precision", "precisions")),
        "recall": frozenset(("recall", "recalls")),
    },
    {
        "generator": frozenset(("g", "gen", "generator")),
        "discriminator": frozenset(("d", "dis", "disc", "discriminator")),
    },
)
"""Words that exclude each other: what a name says of one group is one of these, or unclear."""
_FIGURES: Final = frozenset().union(*_GROUPS[1].values()) | {"err", "error", "score", "auc", "iou", "dice", "bleu"}
_LOGGING: Final = frozenset(("add_scalar", "log", "log_metric", "log_value", "scalar", "update", "add_summary_value"))
_SHOWING: Final = re.compile(r"save|savetxt|savez?|dump|plot|print|info|report\w*")
_HELD_OUT: Final = _GROUPS[0]["val"] | _GROUPS[0]["test"] | _GROUPS[0]["eval"]
_TRAINING: Final = frozenset(("train", "training", "trn"))
_PARTS: Final = _HELD_OUT | _TRAINING
_SHOWN_FIGURES: Final = _FIGURES | frozenset({w for words in WORDS.values() for w in words} | {
    "aucs", "errors", "errs", "f1s", "hist", "history", "rewards", "returns", "scores", "metric", "metrics", "rmses",
    "perplexities", "mious", "dices",
})  # fmt: skip
_PLAIN: Final = frozenset(("float", "mean", "item", "avg", "average", "round", "sum", "array"))


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each figure whose name says that it is another one."""
    yield from _logged(source)
    yield from _in_texts(source)


def _logged(source: SourceFile) -> Iterator[Hit]:
    """Yield each figure that is logged or stored under a name that excludes its own."""
    for label, value in _figures(source):
        name = _value_name(value)
        if (
            not name
            or _is_stand_in(source, value)
            or (name_words(label).isdisjoint(_FIGURES) and name_words(name).isdisjoint(_FIGURES))
        ):
            continue
        for group in _GROUPS:
            said, is_value = _meaning(label, group), _meaning(name, group)
            if said and is_value and said != is_value and _is_certain(source, value, name, (said, is_value)):
                message = f"`{name}` is stored as {label!r}: the name and the value belong to different figures."
                yield Hit(message=message, node=value)
                break


def _in_texts(source: SourceFile) -> Iterator[Hit]:
    """Yield each figure that is printed, drawn or saved with the name of the other part of the data."""
    for node in source.nodes_of(ast.Call, ast.JoinedStr):
        for label, value in _named_figures(node):
            own = data_words(value)
            other = _HELD_OUT if own & _TRAINING else _TRAINING
            if not _is_other(label, own) or not own & _SHOWN_FIGURES or _is_stand_in(source, node):
                continue
            right = _of_part(source, value, own - _PARTS, other)
            if right:
                yield Hit(
                    message=f"`{ast.unparse(value)}` has the name of the other part here: `{right}` is a variable too.",
                    node=value,
                )


def _figures(source: SourceFile) -> Iterator[tuple[str, ast.expr]]:
    """Yield the names under which values are logged or stored, with the values."""
    for call in source.all_calls:
        name = last_name(call.func)
        match call:
            case ast.Call(args=[ast.Constant(value=str(label)), value, *_]) if name in _LOGGING:
                yield label, value
            case ast.Call(func=ast.Attribute(attr="append", value=owner), args=[value]):
                yield _target_name(owner), value
            case _:
                pass
    for each in source.nodes_of(ast.Dict):
        for key, value in zip(each.keys, each.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                yield key.value, value
    for each in source.nodes_of(ast.Assign):
        if isinstance(each.targets[0], ast.Subscript) and isinstance(each.targets[0].slice, ast.Constant):
            yield _target_name(each.targets[0]), each.value


def _target_name(owner: ast.expr) -> str:
    """Return the name of a list or item, with its key if that is a text."""
    if isinstance(owner, ast.Subscript):
        return owner.slice.value if isinstance(owner.slice, ast.Constant) and isinstance(owner.slice.value, str) else ""
    return last_name(owner)


def _value_name(value: Any) -> str:
    """Return the variable that a figure is, also after ``.item()``, ``np.mean`` or a division; "" if it is computed."""
    while True:
        match value:
            case ast.Call(func=ast.Attribute(value=owner, attr=name), args=[]) if name in _PLAIN | {"cpu", "detach"}:
                value = owner
            case ast.Call(args=[first, *_], func=func) if last_name(func) in _PLAIN:
                value = first
            case ast.BinOp(left=inner, op=ast.Div()) | ast.IfExp(body=inner):
                value = inner
            case ast.Attribute(value=ast.Name() as owner, attr="avg" | "mean" | "data" | "value"):
                value = owner
            case _:
                break
    return metric_name(value) if isinstance(value, ast.Name | ast.Attribute) else ""


def _meaning(name: str, group: dict[str, frozenset[str]]) -> str:
    """Return what a name says of a group; "" if it says nothing or several things."""
    words = name_words(re.sub(r"^self\.|_val$", "", name))  # `loss_val` may be the value of a loss
    found = [meaning for meaning, each in group.items() if words & each]
    return found[0] if len(found) == 1 else ""


def _is_certain(source: SourceFile, value: ast.expr, name: str, meanings: tuple[str, str]) -> bool:
    """Return True if words exclude each other; test and validation do, if the named figure is a variable as well."""
    if "eval" in meanings and "train" not in meanings:
        return False  # an evaluation is one of either
    if set(meanings) != {"val", "test"}:
        return True
    owner = getattr(getattr(source.parents.get(id(value)), "func", None), "value", None)  # the list that gets it
    stored = [each.id for each in nodes_in(function_of(source, value), ast.Name) if isinstance(each.ctx, ast.Store)]
    named = [each for each in stored if _meaning(each, _GROUPS[0]) == meanings[0] and each != last_name(owner)]
    return any(name_words(name) & name_words(each) & _FIGURES for each in named)


def _is_other(label: Set[str], own: Set[str]) -> bool:
    """Return True if a label names one part of the data, and a value the other part."""
    named, held = bool(label & _TRAINING), bool(own & _HELD_OUT)
    is_single = named != bool(label & _HELD_OUT) and held != bool(own & _TRAINING)
    return is_single and named == held


def _named_figures(node: Any) -> Iterator[tuple[set[str], ast.expr]]:
    """Yield each value that gets a name, with the words of that name."""
    match node:
        case ast.JoinedStr(values=parts):
            pairs: list[tuple[Any, ast.expr]] = [
                (_label_before(parts, number), each.value)
                for number, each in enumerate(parts)
                if number and isinstance(each, ast.FormattedValue)
            ]
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


def _label_before(parts: list[ast.expr], number: int) -> ast.expr:
    """Return the part before a figure, without a word that directly follows the figure before: ``{a}loss_{b}``."""
    label = parts[number - 1]
    if number > 1 and isinstance(label, ast.Constant) and isinstance(parts[number - 2], ast.FormattedValue):
        return ast.Constant(re.sub(r"^[^\W_][^\s,;|_/]*", "", str(label.value)))
    return label


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


RULE = Rule(
    required_words=(
        "loss|acc|f1|precision|recall|train&val|train&test",
        "append(|log|scalar|update(|]|{|save|dump|plot|print",
    ),
    find=find,
)

BAD = """
import torch
from torch import nn

x = torch.randn(96, 6)
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
val_losses = []
for epoch in range(5):
    optimizer.zero_grad()
    train_loss = model(x[:64]).pow(2).mean()
    train_loss.backward()
    optimizer.step()
    with torch.no_grad():
        val_loss = model(x[64:]).pow(2).mean()
    val_losses.append(train_loss.item())
"""

FAILURE = Failure(
    code="EVL036",
    title="A figure is logged under another name",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"append(train_loss": "append(val_loss"}),
    fix="Log the value that belongs to the name.",
    rule=RULE,
)
