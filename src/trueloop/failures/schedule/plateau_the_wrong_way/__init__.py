"""ReduceLROnPlateau waits for a loss to rise, or for an accuracy to fall.

What you see
    The learning rate is cut again and again while training goes well, and soon nothing moves any more.

Why it happens
    ``mode="max"`` with a loss, or the default ``mode="min"`` with an accuracy, is a comparison like any other: every
    value that is better counts as one without improvement, and after ``patience`` of them the rate falls.

Fix
    ``mode="min"`` for what should fall, ``mode="max"`` for what should rise.

When this is fine
    ``mode="max"`` with an accuracy, a score or minus a loss, and ``mode="min"`` with a loss or an error rate. A loss
    that falls under "max" may be a score that collapses, as far as a run tells, so it is found in the text only: where
    the mode is written out and the value surely is the sum or mean of a loss of torch's, or of answers that are right.

References
    ReduceLROnPlateau, https://docs.pytorch.org/docs/stable/generated/torch.optim.lr_scheduler.ReduceLROnPlateau.html
    FunctionLab/selene#115, "ReduceLROnPlateau in TrainModel uses incorrect mode": it "reduces LR when the maximum loss
    is not increased", https://github.com/FunctionLab/selene/issues/115
    md-mohaiminul/ViS4mer#4: "it used for accuracy metric, but the mode is not changed",
    https://github.com/md-mohaiminul/ViS4mer/issues/4
    RMeli/gnina-torch#57, "LR scheduler mode=max -> mode=min", https://github.com/RMeli/gnina-torch/pull/57
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.abstract_value import AbstractValue
from trueloop.analysis.operations import OpKind
from trueloop.analysis.source_file import Hit, Source
from trueloop.core.source_text import Edit, Fix
from trueloop.failures.failure import Failure, Rule, Severity
from trueloop.failures.schedule.plateau_the_wrong_way.metric_direction import Metric, metric_of

RIGHT: Final = {Metric.LOSS: "min", Metric.ACCURACY: "max"}


def find(source: Source) -> Iterator[Hit]:
    """Yield each advance of a plateau schedule with what gets better the other way."""
    for advance in source.acts(OpKind.SCHEDULED):
        scheduler = advance.subject
        mode = _mode(scheduler)
        if mode is None or not advance.things:
            continue
        metric = metric_of(source, advance.things[0])
        if metric is None or RIGHT[metric] == mode:
            continue
        what = "a loss, which should fall" if metric is Metric.LOSS else "an accuracy, which should rise"
        yield Hit(
            message=f'This value is {what}, and the schedule was made with mode="{mode}": it cuts the rate where '
            "training goes well.",
            node=advance.node,
            related=((scheduler.node, "made here"),),
            fix=_turned(source, scheduler, RIGHT[metric]),
        )


def _mode(scheduler: AbstractValue) -> str | None:
    """Return the mode of a plateau schedule that this file makes in one place."""
    if scheduler.name != "torch.optim.lr_scheduler.ReduceLROnPlateau" or scheduler.either or "**" in scheduler.options:
        return None
    given = scheduler.options.get("1") or scheduler.options.get("mode")
    value = "min" if given is None else given.constant()
    return value if value in ("min", "max") else None


def _turned(source: Source, scheduler: AbstractValue, mode: str) -> Fix | None:
    """Return the fix: the other mode."""
    call = scheduler.node
    if not isinstance(call, ast.Call):
        return None
    given = next((each.value for each in call.keywords if each.arg == "mode"), call.args[1] if call.args[1:] else None)
    if given is None:
        behind = max(source.text.span(each)[1] for each in (*call.args, *(each.value for each in call.keywords)))
        edit = Edit(behind, behind, f', mode="{mode}"')
    elif isinstance(given, ast.Constant):
        edit = source.text.replace(given, f'"{mode}"')
    else:
        return None
    return Fix((edit,), safe=False, words="Turn the mode around")


RULE = Rule(words=("ReduceLROnPlateau", ".step("), find=find)

FAILURE = Failure(
    code="SCH005",
    title="ReduceLROnPlateau looks the wrong way",
    severity=Severity.ERROR,
    doc=__doc__ or "",
    bad="""
import torch
from torch import nn

x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="max", patience=2)
for epoch in range(8):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    scheduler.step(loss.item())
""",
    good="""
import torch
from torch import nn

x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="min", patience=2)
for epoch in range(8):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    scheduler.step(loss.item())
""",
    fix='Give it mode="min" for what should fall and mode="max" for what should rise.',
    rule=RULE,
)
