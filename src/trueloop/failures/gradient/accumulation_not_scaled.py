"""Gradients of K batches are accumulated, but the losses are not divided by K.

What you see
    With accumulation over K batches, training behaves as with a learning rate K times larger: it diverges, or clipping
    is always active. Changing K changes the result, though the effective batch stays the same.

Why it happens
    A sum of K means is a valid loss; it is only K times as large.

Fix
    Divide each loss; in a shorter last window of an epoch, by the number of batches that it has.

        (loss / K).backward()

When this is fine
    - ``loss / K``, or a loss summed over the samples of all K batches and divided by their number.
    - Gradients that are divided by hand before the step.
    - The factor of a GradScaler, which is divided out again.
    - Several losses of one batch.
    - A learning rate that was tuned for the sum. Adam hardly depends on the scale; clipping and its ``eps`` do.

How it is detected
    It is a warning, since a tuned learning rate makes it right. At run time, two windows in a row must have K > 1
    backward passes from one line, each on another batch of one loader and with exactly one mean-reduced loss. Each loss
    has weight 1 in the graph, and nothing scales the sum before the step. Lint reports only PyTorch's own losses
    that go undivided into ``backward()``, if nothing in the file divides by the window size or touches a ``.grad``.

References
    PyTorch documentation "CUDA Automatic Mixed Precision examples", section on gradient accumulation,
    https://docs.pytorch.org/docs/stable/notes/amp_examples.html
    Hugging Face Accelerate guide "Performing gradient accumulation",
    https://huggingface.co/docs/accelerate/usage_guides/gradient_accumulation
"""

import ast
from collections.abc import Iterator
from typing import Any

from trueloop.analysis.abstract_value import MANAGED, ValueKind
from trueloop.analysis.operations import Loop, Op, OpKind
from trueloop.analysis.queries.accumulation_windows import (
    accesses_grad,
    accumulation_window,
    divides_by,
    is_batch_mean,
    repeat_count,
)
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import Evidence
from trueloop.core.source_text import Fix
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.failures.teaching_script import Piece, TeachingLoop
from trueloop.tracing.events import BackwardEnded, Event, GradientsCleared, GradientsClipped, StepTaken, TracingGap

MIN_WINDOWS = 2  # one might be a gradient probe
MAX_BACKWARDS = 4096  # per window; longer ones are not checked
TOLERANCE = 1e-3  # relative, for weights and norms read in float32


class Detector(BaseDetector):
    """Checks whether each loss of an accumulation window entered ``backward()`` with weight 1."""

    subscribes_to = (BackwardEnded, GradientsCleared, GradientsClipped, StepTaken, TracingGap)

    def __init__(self) -> None:
        self._backwards: list[BackwardEnded] = []
        self._norm_at_clipping: float | None = None
        self._undivided_windows = 0

    def observe(self, event: Event) -> Evidence | None:
        """Return evidence at the step that ends the second undivided window in a row."""
        if isinstance(event, StepTaken):
            return self._step(event)
        if isinstance(event, BackwardEnded):
            if len(self._backwards) < MAX_BACKWARDS:  # without an optimizer nothing ends a window
                self._backwards.append(event)
        elif isinstance(event, GradientsCleared):
            self._backwards = [] if event.unused else self._backwards
        elif isinstance(event, GradientsClipped):
            self._norm_at_clipping = event.measured
        elif isinstance(event, TracingGap):
            self._backwards, self._norm_at_clipping, self._undivided_windows = [], None, 0
        return None

    def _step(self, event: StepTaken) -> Evidence | None:
        backwards, self._backwards = self._backwards, []
        norm, self._norm_at_clipping = self._norm_at_clipping or event.grad_norm, None
        if len(backwards) < 2:  # another optimizer's step on the same backward, or no window at all
            return None
        weights = [_weight(ended) for ended in backwards]
        ones = all(weight is not None and abs(weight - 1) < TOLERANCE for weight in weights)
        unscaled = (
            norm is not None
            and event.grad_norm_after_backward is not None
            and abs(norm - event.grad_norm_after_backward) <= TOLERANCE * norm
        )
        distinct = len({ended.batch for ended in backwards}) == len(backwards) == event.backwards
        one_line = len({(ended.loader, ended.location) for ended in backwards}) == 1  # not one task after the other
        self._undivided_windows = self._undivided_windows + 1 if ones and unscaled and distinct and one_line else 0
        if self._undivided_windows < MIN_WINDOWS:
            return None
        return Evidence(
            message=f"The mean losses of {len(backwards)} batches entered `backward()` with weight 1 each, not "
            f"1/{len(backwards)}: the gradient that {event.optimizer.name} used is {len(backwards)} times too large.",
            location=backwards[-1].location,
            related=((event.location, "the step"),) if event.location else (),
            fix=f"Divide by the number of batches in the window: `(loss / {len(backwards)}).backward()`.",
        )


def _weight(ended: BackwardEnded) -> float | None:
    """Return the weight of a backward's loss; None unless it has exactly one mean-reduced loss."""
    loss = ended.losses[0] if len(ended.losses) == 1 else None
    return loss.gradient_weight if loss is not None and loss.reduction == "mean" else None


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield the one backward of each window whose loss is a mean over a batch and is not divided."""
    reported: set[int] = set()
    for step in source.ops(OpKind.STEP):
        if step.subject.kind is not ValueKind.OPTIMIZER or MANAGED in step.subject.facts or not step.loops:
            continue
        found = _window_of(source, step)
        if found is None or id(found[0].node) in reported or accesses_grad(source) or divides_by(source, found[1]):
            continue
        backward, size = found
        reported.add(id(backward.node))
        yield Hit(
            message=f"`{ast.unparse(backward.node)}` accumulates the mean losses of `{ast.unparse(size)}` batches, "
            "and none of them is divided by that number.",
            node=backward.node,
            related=((step.node, "the step"),),
            fix=_divide(source, backward, step, size),
        )


def _window_of(source: SourceFile, step: Op) -> tuple[Op, ast.expr] | None:
    """Return the only backward of the window that ends with a step, and the number of batches in the window."""
    loop = step.loops[-1]
    inside = source.ops_in_loop(loop, root=step.entry_point)
    backwards = [each for each in inside if each.kind is OpKind.BACKWARD]
    if len(backwards) != 1 or source.escapes(step.subject, inside) or not source.reaches(backwards[0], step.subject):
        return None
    backward, ends = backwards[0], accumulation_window(step, loop)
    if ends is not None:
        others = [each for each in inside if each.kind in (OpKind.STEP, OpKind.CLEAR_GRADIENTS)]
        waits = all((ends.branch.node, ends.branch.arm) in _arms(each, loop) for each in others)
        fits = (
            waits
            and len(others) > 1
            and backward.same_iteration_as(step)
            and backward.is_unconditional_in(loop)
            and ends.iterations != 1
        )
        return (backward, ends.size) if fits and is_batch_mean(source, backward, loop) else None
    inner = backward.loops[-1]
    size = repeat_count(source, inner) if len(backward.loops) == len(step.loops) + 1 else None
    if (
        size is None
        or not backward.is_unconditional_in(inner)
        or not is_batch_mean(source, backward, inner, uses_next=True)
    ):
        return None
    return (
        None
        if source.ops_in_loop(inner, OpKind.STEP, OpKind.CLEAR_GRADIENTS, root=step.entry_point)
        else (backward, size)
    )


def _arms(operation: Op, loop: Loop) -> list[tuple[Any, int]]:
    return [(each.node, each.arm) for each in operation.conditions(loop)]


def _divide(source: SourceFile, backward: Op, step: Op, size: ast.expr) -> Fix | None:
    """Return the fix that divides the loss by the size of its window in the call of ``backward()``."""
    call = backward.node
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "backward":
        return None
    in_scope = backward.function is step.function or isinstance(size, ast.Constant)
    loss: ast.expr = call.func.value
    scaled = bool(backward.inputs)
    if scaled:
        if not isinstance(loss, ast.Call) or len(loss.args) != 1:
            return None
        loss = loss.args[0]
    if not in_scope or not isinstance(loss, ast.Name | ast.Attribute | ast.Call | ast.Subscript):
        return None
    text = f"{source.text.segment(loss)} / {source.text.segment(size)}"
    edit = source.text.replace(loss, text if scaled else f"({text})")
    return Fix((edit,), safe=False, description="Divide the loss by the number of batches in its window")


RULE = Rule(required_words=("backward(", ".step(", "%|range"), find=find)


def inject(loop: TeachingLoop) -> None:
    """Break the teaching loop this way."""
    loop.leave_out(Piece.DIVIDE_LOSS)


BAD = """
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
"""

FAILURE = Failure(
    code="GRD003",
    title="Accumulated loss is not divided by the number of batches",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(
        BAD,
        {
            "loss = nn.functional.mse_loss(model(inputs), targets)": (
                "loss = nn.functional.mse_loss(model(inputs), targets) / 4"
            )
        },
    ),
    fix="Divide each loss by the number of batches in its window.",
    rule=RULE,
    detector=Detector,
    inject=inject,
)
