"""A metric that is no mean over samples, such as F1 or AUC, is computed per batch and averaged.

What you see
    The reported F1, precision, recall, AUC or R2 differs from that of a library on all predictions, often by a lot for
    rare classes, and it changes with the batch size.

Why it happens
    A loss or an accuracy is a mean over samples, so the mean over equal batches is the value of the whole dataset. F1,
    AUC or R2 are ratios or ranks: a batch without a positive sample counts as 0, or raises a warning, and a small batch
    says little about the order of the scores.

Fix
    Collect the predictions of all batches, and compute the metric once:

        predictions.append(predicted.cpu())
        labels.append(y.cpu())
        ...
        f1 = f1_score(torch.cat(labels), torch.cat(predictions))

    A metric of torchmetrics does this with ``update()`` for each batch and ``compute()`` at the end.

When this is fine
    - A running value is only displayed during training.
    - Each batch is one unit of its own, such as the documents of one query.
    - The metric is the mean over samples: ``average="samples"``, or ``"micro"`` for one class per sample.

How it is detected
    Only the linter finds it, from the source code: in a loop over a loader without a backward pass, the result of a
    function for F1, precision, recall, AUC, average precision, a correlation or R2 is added to a total, appended to a
    list or passed to a meter, and this total is divided or this list is averaged in the same function.

References
    Forman and Scholz, 2010, "Apples-to-apples in cross-validation studies", on averaged F1 and AUC,
    https://doi.org/10.1145/1882471.1882479
    torchmetrics, "Metrics in distributed and batched mode", https://lightning.ai/docs/torchmetrics/stable/pages/overview.html
"""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import (
    LOADER_WORDS,
    BatchLoop,
    batch_loops,
    has_batches_of_one,
    without_conversions,
)
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import dotted_name, walk
from trueloop.failures.failure import Failure, Rule, Severity, changed

_METRIC: Final = re.compile(
    r"^((binary|multiclass|multilabel|compute|calc|calculate|get|sk|macro)_)?"
    r"(f1|f1_?score|fbeta(_score)?|f_score|precision_score|recall_score|roc_auc(_score)?|auroc|auc_score"
    r"|average_precision(_score)?|matthews_corrcoef|cohen_kappa(_score)?|r2|r2_?score|balanced_accuracy_score"
    r"|spearmanr|pearsonr|concordance_index)$",
    re.IGNORECASE,
)
_MEANS: Final = frozenset(("mean", "average", "fmean", "nanmean"))
_METERS: Final = frozenset(("update", "add"))


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each metric of a batch that is averaged over the batches of an evaluation."""
    for loop in batch_loops(source):
        if has_batches_of_one(source, loop) or _trains(loop):
            continue
        for call in walk(loop.node):
            if isinstance(call, ast.Call) and _is_metric(call) and _innermost_loop(source, call) is loop.node:
                averaged = _averaged(source, loop, call)
                if averaged is not None:
                    yield Hit(
                        message=f"`{last_name(call.func)}` is computed for each batch and averaged over the batches, "
                        "which is not its value on all samples: collect the predictions and compute it once.",
                        node=call,
                        related=((averaged, "averaged here"),),
                    )


def _trains(loop: BatchLoop) -> bool:
    return any(isinstance(each, ast.Attribute) and each.attr == "backward" for each in walk(loop.node))


def _is_metric(call: ast.Call) -> bool:
    """Return True for a call that computes a metric which is not a mean over samples."""
    average = next((each.value for each in call.keywords if each.arg == "average"), None)
    is_mean = isinstance(average, ast.Constant) and average.value in ("samples", "micro", None)
    return len(call.args) + len(call.keywords) > 1 and not is_mean and bool(_METRIC.match(last_name(call.func)))


def _innermost_loop(source: SourceFile, node: ast.AST) -> ast.AST | None:
    parent = source.parents.get(id(node))
    while parent is not None and not isinstance(parent, ast.For | ast.While | ast.FunctionDef):
        parent = source.parents.get(id(parent))
    return parent


def _averaged(source: SourceFile, loop: BatchLoop, call: ast.Call) -> ast.AST | None:
    """Return the expression that averages the results of a call; None if there is none."""
    value, parent = _outermost(source, call, ast.Subscript | ast.Attribute | ast.BinOp)
    if isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Name):
        uses = [
            each
            for each in walk(loop.node)
            if isinstance(each, ast.Name) and each.id == parent.targets[0].id and isinstance(each.ctx, ast.Load)
        ]
        found = (_accumulated(source, loop, each) for each in uses)
        return next((each for each in found if each is not None), None)
    return _accumulated(source, loop, value)


def _outermost(source: SourceFile, value: ast.expr, kinds: Any) -> tuple[ast.expr, Any]:
    """Return the largest expression around a value that only converts or scales it, and the node around that."""
    parent: Any = source.parents.get(id(value))
    while isinstance(parent, kinds) or (isinstance(parent, ast.Call) and without_conversions(parent) is not parent):
        value, parent = parent, source.parents.get(id(parent))
    return value, parent


def _accumulated(source: SourceFile, loop: BatchLoop, value: ast.expr) -> ast.AST | None:
    """Return the expression that averages a total or list to which a value is added."""
    value, parent = _outermost(source, value, ast.BinOp | ast.Attribute)
    match parent:
        case ast.AugAssign(op=ast.Add(), target=target):
            return _division(loop, dotted_name(target))
        case ast.Call(func=ast.Attribute(attr="append", value=owner)):
            return _mean(loop, dotted_name(owner))
        case ast.Call(func=ast.Attribute(attr=attr, value=owner)) if attr in _METERS and len(parent.args) == 2:
            return (
                parent
                if "meter" in dotted_name(owner).lower() or dotted_name(owner).lower().startswith("avg")
                else None
            )
        case _:
            return None


def _division(loop: BatchLoop, name: str) -> ast.AST | None:
    """Return the division of a total."""
    for each in walk(loop.function):
        match each:
            case ast.BinOp(op=ast.Div(), left=left) if dotted_name(without_conversions(left)) == name:
                return each
            case ast.AugAssign(op=ast.Div(), target=target) if dotted_name(target) == name:
                return each
            case _:
                pass
    return None


def _mean(loop: BatchLoop, name: str) -> ast.AST | None:
    """Return the expression that computes the mean of a list."""
    for each in walk(loop.function):
        match each:
            case ast.BinOp(op=ast.Div(), left=ast.Call(func=ast.Name(id="sum"), args=[summed])):
                if dotted_name(summed) == name:
                    return each
            case ast.Call(func=func) if last_name(func) in _MEANS:
                if any(dotted_name(inner) == name for inner in walk(each) if isinstance(inner, ast.expr)):
                    return each
            case _:
                pass
    return None


RULE = Rule(
    required_words=(
        "f1|F1|precision|recall|auc|AUC|auroc|r2|kappa|corrcoef|spearman|pearson|fbeta",
        LOADER_WORDS,
        "+=|append|mean(|/|update(",
    ),
    find=find,
)

BAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def f1_score(labels, predicted):
    hits = (labels * predicted).sum().item()
    return 2 * hits / max(labels.sum().item() + predicted.sum().item(), 1)


torch.manual_seed(0)
x = torch.randn(320, 8)
y = (x.sum(1) > 4).float()
train_loader = DataLoader(TensorDataset(x[:160], y[:160]), batch_size=16, shuffle=True)
val_loader = DataLoader(TensorDataset(x[160:], y[160:]), batch_size=16)
model = nn.Linear(8, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
for epoch in range(3):
    for inputs, labels in train_loader:
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(model(inputs)[:, 0], labels).backward()
        optimizer.step()
    with torch.no_grad():
        scores = []
        for inputs, labels in val_loader:
            predicted = (model(inputs)[:, 0] > 0).float()
            scores.append(f1_score(labels, predicted))
    print("F1", sum(scores) / len(scores))
"""

FAILURE = Failure(
    code="EVL016",
    title="F1, AUC or R2 is averaged over batches",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(
        BAD,
        {
            "scores = []": "predictions = []",
            "scores.append(f1_score(labels, predicted))": "predictions.append(predicted)",
            "sum(scores) / len(scores)": "f1_score(y[160:], torch.cat(predictions))",
        },
    ),
    fix="Collect the predictions of all batches, and compute the metric once after the loop.",
    rule=RULE,
)
