"""The batches at the end of an epoch do not fill a window, and are thrown away or pushed into the next one.

What you see
    The last few batches of each epoch are computed and never trained on. Or the first update of the next epoch is made
    of more batches than the others, and larger.

Why it happens
    ``if (step + 1) % K == 0`` is simply false at the end. What the gradients then hold is nobody's business.

Fix
    Step the short window too: ``if (step + 1) % K == 0 or step + 1 == len(loader)``, and divide its losses by the
    batches it has.

When this is fine
    A short window that is stepped at the end of the epoch, a counter that runs on over epochs so that the window is
    filled by the next one, a loader whose length is a multiple of K, and probes of gradients are all right.
    Certain because the gradients themselves are followed: two windows or more had K backwards, one per batch; the
    loader ended with the rest of the division left over; and then the gradients were cleared, or the next step had
    more than K backwards in it. The text alone tells it only where the number of batches and the window are both
    written out, the counter is the loop's own, and no step comes after the loop.

References
    PyTorch documentation "CUDA Automatic Mixed Precision examples", section on gradient accumulation,
    https://docs.pytorch.org/docs/stable/notes/amp_examples.html
    Hugging Face Accelerate guide "Performing gradient accumulation" (end of the dataloader),
    https://huggingface.co/docs/accelerate/usage_guides/gradient_accumulation
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any, ClassVar

from trueloop.analysis.abstract_value import MANAGED, Kind
from trueloop.analysis.operations import Loop, Op, OpKind
from trueloop.analysis.queries.accumulation_windows import Window, batches, window
from trueloop.analysis.source_file import Hit, Source
from trueloop.core.findings import Evidence
from trueloop.core.source_text import Fix
from trueloop.failures import failure
from trueloop.failures.failure import Failure, Rule, Severity
from trueloop.failures.teaching_script import TeachingLoop
from trueloop.tracing.events import Event, WindowLeftOver


class Detector(failure.Detector):
    """What was left over is told with what became of it."""

    subscribes_to: ClassVar[tuple[type[Event], ...]] = (WindowLeftOver,)

    def observe(self, event: WindowLeftOver) -> Evidence:
        """Return evidence."""
        left = f"{event.left} of {event.batches} batches"
        what = (
            f"The gradients of the last {left} of the epoch were cleared without a step: they are computed and never "
            "trained on"
            if event.cleared
            else f"The gradients of the last {left} of the epoch went into the first update of the next one, which is "
            f"made of {event.backwards} batches instead of {event.window}"
        )
        return Evidence(
            message=f"{what}.",
            location=event.place,
            fix=f"Step a short window too: if (step + 1) % {event.window} == 0 or step + 1 == len(loader).",
        )


def find(source: Source) -> Iterator[Hit]:
    """Yield each loop over a known number of batches that ends amid a window."""
    for step in source.acts(OpKind.STEPPED):
        if step.subject.kind is not Kind.OPTIMIZER or MANAGED in step.subject.facts or not step.loops:
            continue
        loop = step.loops[-1]
        ends = window(step, loop)
        counted = _counted(source, loop)
        if ends is None or counted is None or not ends.alone or not _only_step(source, step, loop):
            continue
        name, values, size = counted
        left = _left(ends, name, values)
        if left:
            yield Hit(
                message=f"The loop has {len(values)} turns and steps in every {ends.turns}th: no step of it uses the "
                f"gradients of the last {left}.",
                node=loop.node.iter,
                related=((step.node, "stepped here"),),
                fix=_stepped_too(source, ends, name, values, size),
            )


def _only_step(source: Source, step: Op, loop: Loop) -> bool:
    """Return True where each turn of a loop goes backward, and nothing but this step can use what it leaves."""
    run = source.run_of(step)
    inside = [each for each in run if each.within(loop)]
    backward = any(each.act is OpKind.BACKWARD and each.always_in(loop) and each.beside(step) for each in inside)
    outer = step.loops[-2] if len(step.loops) > 1 else None
    others = [
        each
        for each in run
        if each.act is OpKind.STEPPED
        and each is not step
        and (each.index > inside[0].index or (outer is not None and each.within(outer)))
    ]
    own = any(
        each.act is OpKind.MADE and each.subject is step.subject and each.function is step.function for each in run
    )
    leaves = any(isinstance(each, ast.Break | ast.Return | ast.Continue) for each in ast.walk(loop.node))
    shown = step.root == 0 or own  # otherwise who calls this may step as well
    return shown and backward and not leaves and not others and not source.handed_out(step.subject, run)


def _counted(source: Source, loop: Loop) -> tuple[str, range, str] | None:
    """Return the counter of a loop, its values, and how their number is written."""
    target, call = getattr(loop.node, "target", None), getattr(loop.node, "iter", None)
    if not isinstance(call, ast.Call) or loop.over is None:
        return None
    if isinstance(target, ast.Name) and loop.turns() is not None:
        return target.id, range(*(each.constant() for each in loop.over.of)), str(loop.turns())
    first = target.elts[0] if isinstance(target, ast.Tuple) and target.elts else None
    over = loop.over.options.get("over")
    if source.name(call.func) != "builtins.enumerate" or not isinstance(first, ast.Name) or over is None:
        return None
    begin: Any = call.args[1] if len(call.args) > 1 else next((each.value for each in call.keywords), None)
    start = 0 if begin is None else getattr(begin, "value", None)
    number = batches(over)
    if number is None or not isinstance(start, int):
        return None
    return first.id, range(start, start + number), f"len({source.text.of(call.args[0])})"


def _left(ends: Window, name: str, values: range) -> int:
    """Return how many turns come after the last end of a window; 0 where there is none, or none at all."""
    counter, ahead = ends.counter, 0
    if isinstance(counter, ast.BinOp) and isinstance(counter.right, ast.Constant) and isinstance(ends.turns, int):
        sign = 1 if isinstance(counter.op, ast.Add) else -1 if isinstance(counter.op, ast.Sub) else 0
        ahead, counter = sign * counter.right.value if isinstance(counter.right.value, int) else 0, counter.left
        if not ahead:
            return 0
    if not isinstance(counter, ast.Name) or counter.id != name or not isinstance(ends.rest, int):
        return 0
    if not isinstance(ends.turns, int) or ends.turns < 2:
        return 0
    turns = [number for number, value in enumerate(values[-ends.turns :]) if (value + ahead) % ends.turns == ends.rest]
    whole = len(values) >= 2 * ends.turns and len(turns) == 1
    return ends.turns - 1 - turns[0] if whole else 0


def _stepped_too(source: Source, ends: Window, name: str, values: range, size: str) -> Fix | None:
    """Return the fix: the last turn ends a window, too."""
    test = ends.branch.node.test
    if ends.branch.arm != 0 or not isinstance(test, ast.Compare) or values.step != 1:
        return None
    last = f"{name} + 1" if values.start == 0 else name if values.start == 1 else ""
    edit = source.text.replace(test, f"{source.text.of(test)} or {last} == {size}") if last else None
    return Fix((edit,), safe=False, words="Step the last window, too") if edit else None


RULE = Rule(words=("backward(", ".step(", "%"), find=find)


def inject(loop: TeachingLoop) -> None:
    """Break the teaching loop this way."""
    loop.require(bool(loop.closes), "Nothing is accumulated: there is no window to be dropped.", accumulation=3)
    loop.closes = loop.closes.replace(" or number + 1 == len(train_loader)", "")


FAILURE = Failure(
    code="GRD004",
    title="The last window of an epoch is dropped",
    severity=Severity.WARNING,
    doc=__doc__ or "",
    bad="""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(240, 8)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(3):
    optimizer.zero_grad()
    for step, (inputs, targets) in enumerate(loader):
        loss = nn.functional.mse_loss(model(inputs), targets) / 4
        loss.backward()
        if (step + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
""",
    good="""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(240, 8)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(3):
    optimizer.zero_grad()
    for step, (inputs, targets) in enumerate(loader):
        loss = nn.functional.mse_loss(model(inputs), targets) / (4 if step < 12 else 3)
        loss.backward()
        if (step + 1) % 4 == 0 or step + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
""",
    fix="Step the last, short window of each epoch too.",
    rule=RULE,
    detector=Detector,
    inject=inject,
)
