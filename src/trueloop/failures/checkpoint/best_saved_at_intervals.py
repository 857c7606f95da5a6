"""The best value is updated in every epoch, but the best model is only saved in every tenth.

What you see
    The file with the best model is older than the best epoch in the log, or there is none. Its score, measured again,
    is worse than the best value that the run printed.

Why it happens
    ``if epoch % save_every == 0`` was meant for the regular checkpoints, and the best model is saved in the same place.
    An improvement in between raises the best value, so that later and worse models, though better than the file, are
    not saved either.

Fix
    Save the best model whenever the value improves:

        if is_best or epoch % save_every == 0:
            save_checkpoint(state, is_best)

When this is fine
    - The model is also evaluated, and the best value updated, in every tenth epoch only.
    - The best model is saved in another place, or its weights are copied when the value improves.

How it is detected
    Only the linter finds it, from the source code: a variable that tells whether a value beats the best one so far, or
    a branch in which the best value is updated. All uses of the variable that save, or all saves in the branch, are
    within an ``if`` that tests ``epoch % n``, and the update of the best value is outside of it.

References
    PyTorch examples, ImageNet, which saves with ``is_best`` in every epoch,
    https://github.com/pytorch/examples/blob/main/imagenet/main.py
"""

import ast
from collections.abc import Iterator
from typing import Any

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.best_values import (
    best_checks,
    best_flags,
    is_same,
    may_save,
    saves_model,
    saving_uses,
    stores,
)
from trueloop.analysis.queries.possible_values import enclosing_nodes
from trueloop.analysis.queries.unread_variables import has_loop
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.source_text import encloses, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each save of the best model that happens at intervals only."""
    for flag in best_flags(source):
        uses = list(saving_uses(source, flag.name))
        tests = [_interval(source, each) for each in uses]
        if uses and all(each is not None and not _mentions(each.test, flag.name) for each in tests):
            yield from _judge(source, uses[0], tests[0], flag.best)
    for check in best_checks(source):
        inner = [each for each in nodes_in(check.node, ast.If) if _is_interval(each.test) and saves_model(each.body)]
        calls = [each for part in check.node.body for each in nodes_in(part, ast.Call) if may_save(each)]
        if check.updates and inner and all(encloses(inner[0], each) for each in calls):
            yield from _judge(source, calls[0], inner[0], check.best)


def _judge(source: SourceFile, save: ast.AST, interval: Any, best: ast.expr) -> Iterator[Hit]:
    """Yield a save if the best value is updated outside of every test of an interval, as in each epoch."""
    updates = [target for target, _ in stores(source.nodes) if is_same(target, best) and has_loop(source, target)]
    here = [each for each in updates if function_of(source, each) is function_of(source, save)]
    if here and all(_interval(source, each) is None for each in here):
        yield Hit(
            message=f"The best model is only saved if `{ast.unparse(interval.test)}`, but "
            f"`{ast.unparse(best)}` is updated in every epoch: a best model in between is lost.",
            node=save if isinstance(save, ast.stmt | ast.expr) else interval,
            related=((interval.test, "the interval"), (here[0], "updated here")),
        )


def _interval(source: SourceFile, node: Any) -> Any:
    """Return the innermost ``if epoch % n == 0`` around a node in its function; None if there is none."""
    found = (each for each in (node, *enclosing_nodes(source, node)) if isinstance(each, ast.If))
    return next((each for each in found if _is_interval(each.test) and not encloses(each.test, node)), None)


def _is_interval(test: ast.expr) -> bool:
    return any(isinstance(each.op, ast.Mod) for each in nodes_in(test, ast.BinOp))


def _mentions(test: ast.expr, name: str) -> bool:
    return any(each.id == name for each in nodes_in(test, ast.Name))


RULE = Rule(required_words=("best", "%", "save|checkpoint"), find=find)

BAD = """
import os
import tempfile
import torch
from torch import nn

path = os.path.join(tempfile.mkdtemp(), "best.pt")
x = torch.randn(128, 8)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
best_loss = float("inf")
for epoch in range(8):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
    loss.backward()
    optimizer.step()
    is_best = loss < best_loss
    best_loss = min(loss.item(), best_loss)
    if epoch % 5 == 0:
        if is_best:
            torch.save(model.state_dict(), path)
"""

FAILURE = Failure(
    code="CKP014",
    title="The best model is only saved at intervals",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(
        BAD, {"    if epoch % 5 == 0:\n        if is_best:\n            torch": "    if is_best:\n        torch"}
    ),
    fix="Save the best model whenever the best value improves, outside of the test of the interval.",
    rule=RULE,
)
