"""``ReduceLROnPlateau`` has ``mode="max"`` for a loss, or ``mode="min"`` for an accuracy.

What you see
    The learning rate is reduced again and again although training goes well, until the loss hardly changes.

Why it happens
    The scheduler does not know whether a higher or a lower value is better. With the wrong mode every better value
    counts as no improvement, and after more than ``patience`` such values the learning rate is reduced.

Fix
    Use "min" for a value that should fall and "max" for a value that should rise.

        ReduceLROnPlateau(optimizer, mode="min")  # scheduler.step(loss)
        ReduceLROnPlateau(optimizer, mode="max")  # scheduler.step(accuracy)

When this is fine
    - You use ``mode="max"`` with an accuracy, a score or a negated loss.
    - You use ``mode="min"`` with a loss or an error rate.

How it is detected
    The linter reports it if the mode is known and the value is certainly the sum or mean of a PyTorch loss or of
    correct predictions. In a run, the sanitizer reports a value whose name, or that of the only function that computes
    it, says in which direction it improves (``val_loss``, ``accuracy()``, also the item of a dictionary or the variable
    of a caller that holds it), if it did improve between two steps of the scheduler. This rests on a name, so it is a
    warning.

References
    ReduceLROnPlateau, https://docs.pytorch.org/docs/stable/generated/torch.optim.lr_scheduler.ReduceLROnPlateau.html
    FunctionLab/selene#115, "ReduceLROnPlateau in TrainModel uses incorrect mode": it "reduces LR when the maximum loss
    is not increased", https://github.com/FunctionLab/selene/issues/115
    md-mohaiminul/ViS4mer#4: "it used for accuracy metric, but the mode is not changed",
    https://github.com/md-mohaiminul/ViS4mer/issues/4
    RMeli/gnina-torch#57, "LR scheduler mode=max -> mode=min", https://github.com/RMeli/gnina-torch/pull/57
"""

import ast
import linecache
import re
import weakref
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.abstract_value import AbstractValue
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.program_files import parse_files
from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.layer_arguments import argument_node
from trueloop.analysis.queries.metric_names import better_direction, metric_name, name_of_computed
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import Evidence, SourceLocation
from trueloop.core.source_text import Edit, Fix, walk
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.failures.schedule.plateau_the_wrong_way.metric_direction import Metric, metric_of
from trueloop.tracing.events import Ref, SchedulerStepped

RIGHT_MODE: Final = {Metric.LOSS: "min", Metric.ACCURACY: "max"}


class Detector(BaseDetector):
    """Compares the mode of each ReduceLROnPlateau with the name of the value that it is given."""

    def __init__(self) -> None:
        self._first: weakref.WeakKeyDictionary[Ref, float] = weakref.WeakKeyDictionary()
        self._reported: weakref.WeakSet[Ref] = weakref.WeakSet()

    def on_scheduler_stepped(self, event: SchedulerStepped) -> Evidence | None:
        """Return evidence at the first step after which the value has improved in the other direction."""
        if event.metric is None or event.location is None or event.scheduler in self._reported:
            return None
        change = event.metric - self._first.setdefault(event.scheduler, event.metric)
        right_mode = "max" if event.mode == "min" else "min"
        is_better = change > 0 if right_mode == "max" else change < 0
        name = _name_of_metric(event.location.source_location) if is_better else ""
        if is_better and not better_direction(name):
            known = [each for each in event.metric_names if better_direction(each)]
            name = known[0] if len(set(map(better_direction, known))) == 1 else ""
        if better_direction(name) != right_mode:
            return None
        self._reported.add(event.scheduler)
        verb = "rises" if right_mode == "max" else "falls"
        return Evidence(
            message=f"`{name}` {verb} when training goes well, but the scheduler has mode={event.mode!r}: every better "
            "value counts as no improvement, and the learning rate is reduced.",
            location=event.location,
            severity=Severity.WARNING,
            fix=f'Build the scheduler with mode="{right_mode}".',
        )


def _name_of_metric(location: SourceLocation) -> str:
    """Return the variable that a line passes to ``step``: "val_acc", "metrics.loss"; "" if it is an expression."""
    match = re.search(r"\.step\((.+)\)", linecache.getline(location.path, location.line))
    try:
        value: ast.AST = ast.parse(match[1], mode="eval").body if match else ast.Constant(None)
    except SyntaxError:
        return ""
    trees = (parse_files([location.path]) or {}).values()
    scopes = [
        each
        for tree in trees
        for each in (tree, *walk(tree))  # inner functions come later
        if isinstance(each, ast.Module | ast.FunctionDef)
        and (isinstance(each, ast.Module) or each.lineno <= location.line <= (each.end_lineno or 0))
    ]
    return name_of_computed(scopes[-1], value) if scopes else metric_name(value)


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each step of a ReduceLROnPlateau with a metric that improves in the other direction."""
    for advance in source.ops(OpKind.SCHEDULER_STEP):
        scheduler = advance.subject
        mode = _mode(scheduler)
        if mode is None or not advance.inputs:
            continue
        metric = metric_of(source, advance.inputs[0])
        if metric is None:
            yield from _judge_name(source, advance, mode)
            continue
        if RIGHT_MODE[metric] == mode:
            continue
        description = "a loss, which should fall" if metric is Metric.LOSS else "an accuracy, which should rise"
        yield Hit(
            message=f'This value is {description}, but the scheduler has mode="{mode}": it reduces the learning rate '
            "although training goes well.",
            node=advance.node,
            related=((scheduler.node, "the scheduler is built here"),),
            fix=_switch_mode(source, scheduler, RIGHT_MODE[metric]),
        )


def _judge_name(source: SourceFile, advance: Op, mode: str) -> Iterator[Hit]:
    """Yield a step with a value whose name tells that it improves in the other direction."""
    arguments = [*advance.node.args, *(each.value for each in advance.node.keywords)]
    name = name_of_computed(function_of(source, advance.node), arguments[0]) if arguments else ""
    right_mode = better_direction(name)
    if right_mode and right_mode != mode:
        verb = "rises" if right_mode == "max" else "falls"
        yield Hit(
            message=f'`{name}` {verb} when training goes well, by its name, but the scheduler has mode="{mode}": every '
            "better value counts as no improvement, and the learning rate is reduced.",
            node=advance.node,
            related=((advance.subject.node, "the scheduler is built here"),),
            fix=_switch_mode(source, advance.subject, right_mode),
            severity=Severity.WARNING,
        )


def _mode(scheduler: AbstractValue) -> str | None:
    """Return the mode of a ReduceLROnPlateau that one line of this file builds; None for other schedulers."""
    if scheduler.name != "torch.optim.lr_scheduler.ReduceLROnPlateau" or scheduler.union or "**" in scheduler.arguments:
        return None
    argument = scheduler.arguments.get("1") or scheduler.arguments.get("mode")
    value = "min" if argument is None else argument.constant()
    return value if value in ("min", "max") else None


def _switch_mode(source: SourceFile, scheduler: AbstractValue, mode: str) -> Fix | None:
    """Return the fix that passes the other mode."""
    call = scheduler.node
    if not isinstance(call, ast.Call):
        return None
    argument = argument_node(call, "mode", 1)
    if argument is None:
        end = max(source.text.span(each)[1] for each in (*call.args, *(each.value for each in call.keywords)))
        edit = Edit(end, end, f', mode="{mode}"')
    elif isinstance(argument, ast.Constant):
        edit = source.text.replace(argument, f'"{mode}"')
    else:
        return None
    return Fix((edit,), safe=False, description="Use the other mode")


RULE = Rule(required_words=("ReduceLROnPlateau", ".step("), find=find)

BAD = """
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
"""

FAILURE = Failure(
    code="SCH005",
    title="ReduceLROnPlateau has the wrong mode",
    severity=Severity.ERROR,
    bad=BAD,
    good=changed(
        BAD,
        {
            'scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="max", patience=2)': (
                'scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="min", patience=2)'
            )
        },
    ),
    fix='Use mode="min" for a value that should fall and mode="max" for a value that should rise.',
    rule=RULE,
    detector=Detector,
)
