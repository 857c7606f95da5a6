"""A schedule is advanced only in the epochs in which the model has improved.

What you see
    The learning rate falls late or never, and another seed gives another schedule. When the model stops improving,
    which is when a lower rate would help, the rate stays where it is.

Why it happens
    ``scheduler.step()`` stands in the branch that stores the best model. A scheduler counts its calls; it does not know
    that epochs were left out.

Fix
    Advance the schedule in each epoch, after the branch.

        if accuracy > best:
            best = accuracy
            torch.save(model.state_dict(), "best.pt")
        scheduler.step()

When this is fine
    - The scheduler is advanced in the other branch as well.
    - ``ReduceLROnPlateau`` decides by the metric itself.

How it is detected
    Only the linter finds it: an ``if`` that compares a value with the best one so far and stores it contains the only
    ``step()`` of a scheduler.

References
    torch.optim, "How to adjust learning rate", https://docs.pytorch.org/docs/stable/optim.html
"""

import ast
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.operations import OpKind
from trueloop.analysis.queries.best_values import best_checks
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.source_text import encloses
from trueloop.failures.failure import Failure, Rule, Severity, changed


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each step of a scheduler that depends on an improvement."""
    steps = source.ops(OpKind.SCHEDULER_STEP)
    for check in best_checks(source) if steps else ():
        for step in steps:
            own = [each for each in steps if each.subject is step.subject]
            is_plain = isinstance(step.node, ast.Call) and not step.node.args and not step.node.keywords
            if is_plain and all(any(encloses(part, each.node) for part in check.node.body) for each in own):
                yield Hit(
                    message=f"`{ast.unparse(step.node)}` runs only if `{ast.unparse(check.node.test)}`: the schedule "
                    "stands still in all other epochs.",
                    node=step.node,
                    related=((check.node.test, "the condition"),),
                )
                break


RULE: Final = Rule(required_words=(".step()", "best|lowest|min_|_min", "ched|LR(", "if "), find=find)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(200, 8)
y = x.sum(1, keepdim=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=8)
best = float("inf")
for epoch in range(8):
    for rows in torch.randperm(160).split(40):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x[rows]), y[rows])
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        val_loss = nn.functional.mse_loss(model(x[160:]), y[160:]).item()
    if val_loss < best:
        best = val_loss
        torch.save(model.state_dict(), "best.pt")
        scheduler.step()
    print(epoch, val_loss)
"""

FAILURE = Failure(
    code="SCH015",
    title="Schedule advances only when the model improves",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"        scheduler.step()\n": "    scheduler.step()\n"}),
    fix="Call scheduler.step() in every epoch, outside of the branch.",
    rule=RULE,
)
