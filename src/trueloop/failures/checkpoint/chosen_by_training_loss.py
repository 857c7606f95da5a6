"""The best weights, or the moment to stop, are chosen by the training loss although a validation loss is at hand.

What you see
    The "best" checkpoint is nearly always the last one, early stopping never stops before the end, and the saved model
    is worse on new data than one from an earlier epoch.

Why it happens
    The training loss falls as long as the model memorises its samples. Only samples that were not trained on show when
    it becomes worse on new ones.

Fix
    Compare the validation loss:

        if val_loss < best_loss:
            best_loss = val_loss
            torch.save(model.state_dict(), "best.pt")

When this is fine
    - Both are followed, each with a best value of its own.
    - There are only training and test samples: a test loss must not choose the weights.
    - Each batch consists of newly generated data, so the training loss is one on new samples.

How it is detected
    Only the linter finds it: a comparison with the best value so far that saves the model or counts epochs for early
    stopping, or a call of an object for early stopping. Its value is added up or computed in the loop of the backward
    passes, while the same epoch computes a loss on validation data and only prints, logs or collects it. Names with the
    word test do not count.

References
    Prechelt, "Automatic early stopping using cross validation: quantifying the criteria", 1998,
    https://doi.org/10.1016/S0893-6080(98)00010-0
    torch.save, https://docs.pytorch.org/docs/stable/generated/torch.save.html
"""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.best_values import choices
from trueloop.analysis.queries.held_out_names import HELD_OUT, TRAINING, data_words
from trueloop.analysis.queries.loop_variables import trains
from trueloop.analysis.queries.metric_names import name_words
from trueloop.analysis.queries.possible_values import enclosing_nodes
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import dotted_name, encloses, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_TEST: Final = frozenset(("test", "testing", "te", "ts", "tst", "xte", "yte", "xt", "yt"))
_SHOWN: Final = re.compile(
    r"^(print|append|write|log\w*|info|debug|add_scalar\w*|report|set_\w+|update|format|tqdm|round)$"
)
_Loop = ast.For | ast.While


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each choice by a training loss in an epoch that also computes a validation loss."""
    found = list(choices(source))
    for node, value in found:
        loop, name = _around(source, node, _Loop), dotted_name(value)
        if loop is None or not name or data_words(value) & (HELD_OUT | _TEST) or not _is_trained_on(loop, name):
            continue
        others = [ast.unparse(other) for each, other in found if each is not node and encloses(loop, each)]
        for statement, held_out in _held_out_losses(loop):
            if held_out != name and held_out not in others and _is_only_shown(loop, held_out):
                yield Hit(
                    message=f"`{ast.unparse(node)}` chooses by the training loss, which falls also while "
                    f"`{held_out}` rises.",
                    node=node,
                    related=((statement, "the loss on held-out data"),),
                )
                break


def _around(source: SourceFile, node: ast.AST, kind: Any) -> Any:
    return next((each for each in enclosing_nodes(source, node) if isinstance(each, kind)), None)


def _is_trained_on(loop: ast.AST, name: str, depth: int = 3) -> bool:
    """Return True for a value that an epoch adds up, or computes, in its loop over the training batches."""
    for each in nodes_in(loop, ast.Assign, ast.AugAssign):
        targets = each.targets if isinstance(each, ast.Assign) else [each.target]
        if name not in map(dotted_name, targets):
            continue
        inner = [e for e in nodes_in(loop, ast.For, ast.While) if e is not loop and encloses(e, each)]
        if any(map(trains, inner)):
            return True
        call = each.value if isinstance(each.value, ast.Call) else None
        if call is not None and name_words(last_name(call.func)) & TRAINING:
            return True  # train_loss = train_one_epoch(...)
        names = {e.id for e in nodes_in(each.value, ast.Name)} - {name}
        if (
            depth
            and isinstance(each.value, ast.BinOp | ast.Name)
            and any(_is_trained_on(loop, other, depth - 1) for other in names)
        ):
            return True
    return False


def _held_out_losses(loop: Any) -> Iterator[tuple[ast.stmt, str]]:
    """Yield the losses that an epoch computes on validation data, with their names."""
    for statement in nodes_in(loop, ast.Assign):
        target, words = statement.targets[0], data_words(statement)
        if not isinstance(target, ast.Name) or words & _TEST or words & TRAINING:
            continue
        calls = [last_name(each.func) for each in nodes_in(statement.value, ast.Call)]
        is_evaluation = bool(words & HELD_OUT) or any(re.match(r"eval|valid", each) for each in calls)
        is_loss = any(re.search(r"loss|entropy|criterion|crit$|loss_fn|eval|valid", each) for each in calls)
        parents = [
            each for each in nodes_in(loop, ast.For, ast.While) if each is not loop and encloses(each, statement)
        ]
        if not any(map(trains, parents)) and is_loss and (is_evaluation or _is_without_gradients(loop, statement)):
            yield statement, target.id


def _is_without_gradients(loop: Any, statement: ast.stmt) -> bool:
    """Return True for a statement of an epoch under ``no_grad``, whose data are called as those of validation."""
    blocks = [each for each in nodes_in(loop, ast.With) if any(encloses(inner, statement) for inner in each.body)]
    texts = [ast.unparse(item.context_expr) for each in blocks for item in each.items]
    names = {last_name(each) for each in nodes_in(statement, ast.Name)}
    return any("no_grad" in each or "inference" in each for each in texts) and any(
        re.fullmatch(r"[xyXY]_?(v|va|val|dev|h|holdout)", each) for each in names
    )


def _is_only_shown(loop: Any, name: str) -> bool:
    """Return True if an epoch only prints, logs or collects a value."""
    uses = [each for each in nodes_in(loop, ast.Name) if each.id == name and isinstance(each.ctx, ast.Load)]
    shown = [
        each
        for call in nodes_in(loop, ast.Call)
        if _SHOWN.match(last_name(call.func))
        for each in nodes_in(call, ast.Name)
    ]
    return all(any(each is use for each in shown) for use in uses)


RULE = Rule(
    required_words=("best|Best|top", "backward(", "val|eval|dev|no_grad|holdout", "save|copy|break|patien|top"),
    find=find,
)

BAD = """
import copy
import torch
from torch import nn

torch.manual_seed(0)
x, x_val = torch.randn(128, 8), torch.randn(64, 8)
y, y_val = x.sum(1, keepdim=True) + torch.randn(128, 1), x_val.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
best_loss, best_state = float("inf"), None
for epoch in range(8):
    train_loss = 0.0
    for rows in torch.randperm(128).split(32):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x[rows]), y[rows])
        loss.backward()
        optimizer.step()
        train_loss += loss.item() / 4
    with torch.no_grad():
        val_loss = nn.functional.mse_loss(model(x_val), y_val).item()
    print(epoch, train_loss, val_loss)
    if train_loss < best_loss:
        best_loss = train_loss
        best_state = copy.deepcopy(model.state_dict())
model.load_state_dict(best_state)
"""

FAILURE = Failure(
    code="CKP013",
    title="The best weights are chosen by the training loss",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(
        BAD,
        {
            "    if train_loss < best_loss:\n        best_loss = train_loss\n": (
                "    if val_loss < best_loss:\n        best_loss = val_loss\n"
            )
        },
    ),
    fix="Compare the validation loss with the best one.",
    rule=RULE,
)
