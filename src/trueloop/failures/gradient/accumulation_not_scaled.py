"""Gradients of K batches are added up, but none of the losses is divided by K.

What you see
    With accumulation over K batches, training behaves as with a learning rate K times larger: it diverges, or clipping
    is always at its limit. Changing K changes the result, though the effective batch was to stay the same.

Why it happens
    A sum of K means is a perfectly good loss, K times as large.

Fix
    Divide: ``(loss / K).backward()``; in the last window of an epoch by the batches it really has.

When this is fine
    ``loss / K``, a loss summed over samples and divided by their number, gradients divided by hand before the step, a
    GradScaler's factor, and several losses of one batch are not told. It is a warning: who tuned the learning rate for
    the sum is right too, and Adam is nearly indifferent to the scale (clipping, its eps and its weight decay are not).
    Told when two windows in a row of K > 1 backwards by one line, each on another batch of one loader and with exactly
    one mean-reduced loss, gave each loss the weight 1, read from the graph, and nothing scaled the sum before the step.
    The text alone tells it of one of torch's own losses that goes backward as it is, where nothing in the file divides
    by the size of the window or touches a ``.grad``.

References
    PyTorch documentation "CUDA Automatic Mixed Precision examples", section on gradient accumulation,
    https://docs.pytorch.org/docs/stable/notes/amp_examples.html
    Hugging Face Accelerate guide "Performing gradient accumulation",
    https://huggingface.co/docs/accelerate/usage_guides/gradient_accumulation
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any, ClassVar

from trueloop.analysis.abstract_value import MANAGED, Kind
from trueloop.analysis.operations import Loop, Op, OpKind
from trueloop.analysis.queries.accumulation_windows import by_hand, divides, mean_of_batch, repeated, window
from trueloop.analysis.source_file import Hit, Source
from trueloop.core.findings import Evidence
from trueloop.core.source_text import Fix
from trueloop.failures import failure
from trueloop.failures.failure import Failure, Rule, Severity
from trueloop.failures.teaching_script import Piece, TeachingLoop
from trueloop.tracing.events import (
    BackwardEnded,
    Event,
    Gap,
    GradientsCleared,
    GradientsClipped,
    StepTaken,
)

WINDOWS = 2  # one might be a probe
MOST_PARTS = 4096  # of a window; longer ones are not judged
CLOSE = 1e-3  # of weights and norms read in float32


class Detector(failure.Detector):
    """Adds up the weights with which the losses of a window entered backward."""

    subscribes_to: ClassVar[tuple[type[Event], ...]] = (
        BackwardEnded,
        GradientsCleared,
        GradientsClipped,
        StepTaken,
        Gap,
    )

    def __init__(self) -> None:
        self._parts: list[BackwardEnded] = []
        self._clipped: float | None = None
        self._windows = 0

    def observe(self, event: Event) -> Evidence | None:
        """Return evidence at the step of a second window of this kind."""
        if isinstance(event, StepTaken):
            return self._step(event)
        if isinstance(event, BackwardEnded):
            if len(self._parts) < MOST_PARTS:  # without an optimizer nothing ends a window
                self._parts.append(event)
        elif isinstance(event, GradientsCleared):
            self._parts = [] if event.unconsumed else self._parts
        elif isinstance(event, GradientsClipped):
            self._clipped = event.measured
        elif isinstance(event, Gap):
            self._parts, self._clipped, self._windows = [], None, 0
        return None

    def _step(self, event: StepTaken) -> Evidence | None:
        parts, self._parts = self._parts, []
        used, self._clipped = self._clipped or event.norm, None
        if len(parts) < 2:  # another optimizer's step on the same backward, or no window at all
            return None
        weights = [_weight(ended) for ended in parts]
        ones = all(weight is not None and abs(weight - 1) < CLOSE for weight in weights)
        untouched = used is not None and event.norm_made is not None and abs(used - event.norm_made) <= CLOSE * used
        distinct = len({ended.batch for ended in parts}) == len(parts) == event.backwards
        alike = len({(ended.loader, ended.place) for ended in parts}) == 1  # not one task after the other
        self._windows = self._windows + 1 if ones and untouched and distinct and alike else 0
        if self._windows < WINDOWS:
            return None
        return Evidence(
            message=f"The mean losses of {len(parts)} batches entered backward with weight 1 each: together "
            f"{len(parts)}, not 1, so that the update of {event.optimizer.name} is that of a {len(parts)} times larger "
            "gradient.",
            location=parts[-1].place,
            related=((event.place, "stepped here"),) if event.place else (),
            fix=f"Divide by the number of batches in the window: (loss / {len(parts)}).backward().",
        )


def _weight(ended: BackwardEnded) -> float | None:
    """Return the weight of a backward's loss; None where it is not one mean-reduced loss."""
    loss = ended.losses[0] if len(ended.losses) == 1 else None
    return loss.weight if loss is not None and loss.reduction == "mean" else None


def find(source: Source) -> Iterator[Hit]:
    """Yield the one backward of each window whose loss is a mean over a batch and goes backward undivided."""
    told: set[int] = set()
    for step in source.acts(OpKind.STEPPED):
        if step.subject.kind is not Kind.OPTIMIZER or MANAGED in step.subject.facts or not step.loops:
            continue
        found = _window(source, step)
        if found is None or id(found[0].node) in told or by_hand(source) or divides(source, found[1]):
            continue
        backward, size = found
        told.add(id(backward.node))
        yield Hit(
            message=f"The mean losses of {source.text.of(size)} batches are added up, and none is divided by that.",
            node=backward.node,
            related=((step.node, "stepped here"),),
            fix=_divided(source, backward, step, size),
        )


def _window(source: Source, step: Op) -> tuple[Op, ast.expr] | None:
    """Return the only backward of a window that a step ends, and the number of batches in it."""
    loop = step.loops[-1]
    inside = source.within(loop, root=step.root)
    backwards = [each for each in inside if each.act is OpKind.BACKWARD]
    if len(backwards) != 1 or source.handed_out(step.subject, inside) or not source.reaches(backwards[0], step.subject):
        return None
    backward, ends = backwards[0], window(step, loop)
    if ends is not None:
        others = [each for each in inside if each.act in (OpKind.STEPPED, OpKind.CLEARED)]
        waits = all((ends.branch.node, ends.branch.arm) in _arms(each, loop) for each in others)
        fits = waits and len(others) > 1 and backward.beside(step) and backward.always_in(loop) and ends.turns != 1
        return (backward, ends.size) if fits and mean_of_batch(source, backward, loop) else None
    inner = backward.loops[-1]
    size = repeated(source, inner) if len(backward.loops) == len(step.loops) + 1 else None
    if size is None or not backward.always_in(inner) or not mean_of_batch(source, backward, inner, drawn=True):
        return None
    return None if source.within(inner, OpKind.STEPPED, OpKind.CLEARED, root=step.root) else (backward, size)


def _arms(operation: Op, loop: Loop) -> list[tuple[Any, int]]:
    return [(each.node, each.arm) for each in operation.conditions(loop)]


def _divided(source: Source, backward: Op, step: Op, size: ast.expr) -> Fix | None:
    """Return the fix: the loss is divided by the size of its window, where it goes backward."""
    call = backward.node
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "backward":
        return None
    here = backward.function is step.function or isinstance(size, ast.Constant)
    loss: ast.expr = call.func.value
    scaled = bool(backward.things)
    if scaled:
        if not isinstance(loss, ast.Call) or len(loss.args) != 1:
            return None
        loss = loss.args[0]
    if not here or not isinstance(loss, ast.Name | ast.Attribute | ast.Call | ast.Subscript):
        return None
    text = f"{source.text.of(loss)} / {source.text.of(size)}"
    edit = source.text.replace(loss, text if scaled else f"({text})")
    return Fix((edit,), safe=False, words="Divide the loss by the number of batches in its window")


RULE = Rule(words=("backward(", ".step(", "%|range"), find=find)


def inject(loop: TeachingLoop) -> None:
    """Break the teaching loop this way."""
    loop.leave_out(Piece.SHARE)


FAILURE = Failure(
    code="GRD003",
    title="Accumulated losses are not divided by their number",
    severity=Severity.WARNING,
    doc=__doc__ or "",
    bad="""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(256, 8)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step, (inputs, targets) in enumerate(loader):
    loss = nn.functional.mse_loss(model(inputs), targets)
    loss.backward()
    if (step + 1) % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()
""",
    good="""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(256, 8)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step, (inputs, targets) in enumerate(loader):
    loss = nn.functional.mse_loss(model(inputs), targets) / 4
    loss.backward()
    if (step + 1) % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()
""",
    fix="Divide each loss by the number of batches in its window.",
    rule=RULE,
    detector=Detector,
    inject=inject,
)
