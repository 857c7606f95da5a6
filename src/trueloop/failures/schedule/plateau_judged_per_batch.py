"""``ReduceLROnPlateau`` gets the loss of each batch, with a patience that is counted in epochs.

What you see
    The learning rate falls to almost nothing within the first epochs, and the loss stops falling.

Why it happens
    The scheduler reduces the rate after more than ``patience`` values in a row that are not better than the best one.
    The losses of batches differ by chance: one batch with a very low loss is not beaten by the next eleven, although
    training goes well. The usual patience of 10 or less is meant for epochs.

Fix
    Step the scheduler once per epoch, with a value that belongs to the whole epoch.

        for epoch in range(epochs):
            for inputs, targets in loader:
                ...
            scheduler.step(evaluate(model, validation_loader))

When this is fine
    - The patience is counted in batches, and is longer than an epoch.
    - The scheduler is stepped every n updates, with a mean of many batches.
    - The only batch of an epoch contains all samples.

How it is detected
    In a run, the sanitizer reports a scheduler with a patience below 50 that got exactly the loss of the latest
    backward pass after each single update, in at least 16 updates in a row, and more than its patience, each with
    another input of the model than the one before. The linter reports a step in a loop over batches, in every iteration
    that steps the optimizer, with the loss of that iteration, if the patience is a constant below 50.

References
    ReduceLROnPlateau, https://docs.pytorch.org/docs/stable/generated/torch.optim.lr_scheduler.ReduceLROnPlateau.html
"""

import ast
import math
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.abstract_value import AbstractValue
from trueloop.analysis.operations import Loop, Op, OpKind
from trueloop.analysis.queries.accumulation_windows import batch_count
from trueloop.analysis.queries.batch_loops import is_loader
from trueloop.analysis.queries.loops import is_batch_loop, is_statement
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import Evidence
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.tracing.events import BackwardEnded, LoaderExhausted, ModelCalled, Ref, SchedulerStepped, TracingGap

MIN_STEPS: Final = 16
MAX_PATIENCE: Final = 50
NAME: Final = "torch.optim.lr_scheduler.ReduceLROnPlateau"
CONVERSIONS: Final = frozenset(("item", "detach", "builtins.float", "tolist", "cpu"))


class Detector(BaseDetector):
    """Counts the successive updates after which a ReduceLROnPlateau got the loss of their batch."""

    activated_by = (SchedulerStepped,)

    def __init__(self) -> None:
        self._scheduler: Ref | None = None
        self._steps = self._updates = 0
        """Successive steps of the scheduler, and number of updates before the latest one."""
        self._loss = math.nan
        self._input: tuple[Any, ...] = ()
        self._is_other_input = False
        self._patience = 0
        self._is_reported = False

    def on_model_called(self, event: ModelCalled) -> None:
        """Compare the input with that of the latest call with gradients."""
        if event.has_graph and not event.recomputed and not self._is_reported:
            from trueloop.tracing.parameter_snapshot import first_values

            values = () if event.inputs is None else (tuple(event.inputs.shape), *first_values(event.inputs))
            self._is_other_input = bool(values) and values != self._input
            self._input = values

    def on_backward_ended(self, event: BackwardEnded) -> None:
        """Record the loss."""
        self._loss = math.nan if event.root_value is None else event.root_value

    def on_scheduler_stepped(self, event: SchedulerStepped) -> Evidence | None:
        """Return evidence after enough steps in a row with the loss of a batch."""
        if event.patience is None or self._is_reported:
            return None
        is_next = self._scheduler is event.scheduler and event.optimizer_steps == self._updates + 1
        is_loss = event.metric is not None and math.isclose(event.metric, self._loss, rel_tol=1e-6)
        self._scheduler, self._updates = event.scheduler, event.optimizer_steps
        self._patience = event.patience
        self._steps = self._steps + 1 if is_next and is_loss and self._is_other_input else 0
        if event.patience >= MAX_PATIENCE or self._steps < max(MIN_STEPS, event.patience + 2):
            return None
        self._is_reported = True
        return Evidence(
            message=f"This ReduceLROnPlateau got the loss of a single batch after each of {self._steps} updates, but "
            f"its patience is {event.patience}: chance decides when the learning rate is reduced.",
            location=event.location,
            related=((event.built_at, "built here"),) if event.built_at else (),
        )

    def on_loader_exhausted(self, event: LoaderExhausted) -> None:
        """Begin to count again after an epoch that is not longer than the patience."""
        if event.backwards and event.batches <= max(1, self._patience):
            self._steps = 0

    def on_tracing_gap(self, event: TracingGap) -> None:
        """Begin to count again."""
        self._scheduler, self._steps = None, 0


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each step of a ReduceLROnPlateau with the loss of one batch."""
    reported: set[int] = set()
    for advance in source.ops(OpKind.SCHEDULER_STEP):
        patience = _patience(advance.subject)
        loop = _batch_loop(source, advance)
        if patience is None or loop is None or not advance.inputs or id(advance.node) in reported:
            continue
        backward = _backward_of(source, advance, loop)
        if backward is not None:
            reported.add(id(advance.node))
            yield Hit(
                message=f"`{ast.unparse(advance.node)}` judges the loss of each single batch, but the patience of this "
                f"scheduler is {patience}: chance decides when the learning rate is reduced.",
                node=advance.node,
                related=((advance.subject.node, "the scheduler"), (backward.node, "the same loss")),
            )


def _patience(scheduler: AbstractValue) -> int | None:
    """Return the patience of a scheduler if it is small; None for another scheduler."""
    if scheduler.name != NAME or scheduler.union or "**" in scheduler.arguments:
        return None
    argument = scheduler.arguments.get("patience") or scheduler.arguments.get("3")
    value = 10 if argument is None else argument.constant()
    return value if isinstance(value, int) and value < MAX_PATIENCE else None


def _batch_loop(source: SourceFile, advance: Op) -> Loop | None:
    """Return the loop over batches whose every iteration steps the scheduler; None if there is none."""
    loop = advance.loops[-1] if advance.loops and is_statement(advance.loops[-1].node) else None
    if loop is None or not advance.is_unconditional_in(loop) or loop.runs_at_most_once():
        return None
    iterable = getattr(loop.node, "iter", None)
    inner = iterable.args[0] if isinstance(iterable, ast.Call) and iterable.args else iterable
    named = isinstance(inner, ast.Name | ast.Attribute) and is_loader(source, inner)
    if not named and not is_batch_loop(loop):
        return None
    loader = loop.iterable
    if loader is not None and (batch_count(loader) == 1 or _has_one_batch(loader)):
        return None
    return loop


def _has_one_batch(loader: AbstractValue) -> bool:
    size = loader.arguments.get("batch_size") or loader.arguments.get("1")
    return size is not None and isinstance(size.node, ast.Call) and getattr(size.node.func, "id", "") == "len"


def _backward_of(source: SourceFile, advance: Op, loop: Loop) -> Op | None:
    """Return the backward pass of an iteration that starts from the value that the scheduler gets."""
    inside = source.ops_in_loop(loop, root=advance.entry_point)
    optimizer = advance.subject.sources[0] if advance.subject.sources else None
    steps = [each for each in inside if each.kind is OpKind.STEP and optimizer and each.subject.may_alias(optimizer)]
    if not any(each.same_iteration_as(advance) and each.is_unconditional_in(loop) for each in steps):
        return None
    value = advance.inputs[0]
    if len(list(value.alternatives())) > 1:
        return None  # a running mean, perhaps
    while value.sources and (value.name in CONVERSIONS or _converts(value)):
        value = value.sources[0]
    for each in inside:
        is_same = each.kind is OpKind.BACKWARD and each.subject.may_alias(value) and each.same_iteration_as(advance)
        if is_same and each.is_unconditional_in(loop):
            return each
    return None


def _converts(value: AbstractValue) -> bool:
    match value.node:
        case ast.Call(func=ast.Name(id="float")) | ast.Call(func=ast.Attribute(attr="item" | "detach" | "cpu")):
            return True
        case _:
            return False


RULE: Final = Rule(required_words=("ReduceLROnPlateau", ".step(", "backward("), find=find)

BAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(512, 8)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=10)
for epoch in range(3):
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        scheduler.step(loss.item())
"""

FAILURE = Failure(
    code="SCH013",
    title="ReduceLROnPlateau judges single batches",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(
        BAD,
        {
            "for epoch in range(3):\n": "for epoch in range(3):\n    total = 0.0\n",
            "        scheduler.step(loss.item())\n": (
                "        total += loss.item()\n    scheduler.step(total / len(loader))\n"
            ),
        },
    ),
    fix="Step the scheduler once per epoch, with the loss of the whole epoch.",
    rule=RULE,
    detector=Detector,
)
