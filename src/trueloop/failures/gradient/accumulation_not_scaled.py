"""Gradients of K batches are accumulated, but the losses are not divided by K.

What you see
    With accumulation over K batches, training behaves as with a learning rate K times larger: it diverges, or clipping
    is always active. Four batches of 16 samples give another result than one batch of 64.

Why it happens
    The gradients of the K batches are added. Each loss is a mean over its batch, so the sum is K times as large as the
    gradient of the mean over all samples.

Fix
    Divide each loss by K, the number of batches whose gradients are added before the step. If the last step of an epoch
    has fewer batches, divide their losses by this smaller number.

        (loss / K).backward()

When this is fine
    - Each loss is divided by K, or is a sum over samples that is divided by the number of samples in all K batches.
    - The gradients are divided by hand before the step.
    - The losses are multiplied by a GradScaler's factor, which the scaler removes again.
    - The backward passes belong to several losses of one batch.
    - You tuned the learning rate for the sum. Adam hardly depends on the scale, but clipping and Adam's ``eps`` do.

How it is detected
    In a run, the sanitizer reports two successive steps before which one line ran K > 1 backward passes, each on a
    different batch of one loader and with one loss that is a mean, if no loss was divided and nothing scaled the
    gradients before the step. The linter reports PyTorch's own losses that go undivided into ``backward()``, if nothing
    in the file divides by K or uses a ``.grad``. A tuned learning rate makes it correct, so this is a warning.

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

MIN_WINDOWS = 2  # a single window may only measure gradients
MAX_BACKWARDS = 4096  # backward passes per window; windows with more are not checked
TOLERANCE = 1e-3  # relative, for weights and norms read in float32


class Detector(BaseDetector):
    """Checks whether the losses of an accumulation window were divided before ``backward()``."""

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
        if len(backwards) < 2:  # no accumulation, or another optimizer has already stepped
            return None
        weights = [_weight(ended) for ended in backwards]
        ones = all(weight is not None and abs(weight - 1) < TOLERANCE for weight in weights)
        unscaled = (
            norm is not None
            and event.grad_norm_after_backward is not None
            and abs(norm - event.grad_norm_after_backward) <= TOLERANCE * norm
        )
        distinct = len({ended.batch for ended in backwards}) == len(backwards) == event.backwards
        one_line = (
            len({(ended.loader, ended.location) for ended in backwards}) == 1
        )  # otherwise they may be different tasks
        self._undivided_windows = self._undivided_windows + 1 if ones and unscaled and distinct and one_line else 0
        if self._undivided_windows < MIN_WINDOWS:
            return None
        return Evidence(
            message=f"{event.optimizer.name} used the sum of the gradients of {len(backwards)} batches: no loss was "
            f"divided by {len(backwards)}, so the gradients are {len(backwards)} times too large.",
            location=backwards[-1].location,
            related=((event.location, "the step"),) if event.location else (),
            fix=f"Divide by the number of batches in the window: `(loss / {len(backwards)}).backward()`.",
        )


def _weight(ended: BackwardEnded) -> float | None:
    """Return the weight of a backward pass's loss; None unless there is exactly one loss and it is a mean."""
    loss = ended.losses[0] if len(ended.losses) == 1 else None
    return loss.gradient_weight if loss is not None and loss.reduction == "mean" else None


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield the backward pass of each window whose loss is a mean over a batch and is not divided."""
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
            message=f"`{ast.unparse(backward.node)}` adds up the gradients of `{ast.unparse(size)}` batches, but the "
            "losses are not divided by that number.",
            node=backward.node,
            related=((step.node, "the step"),),
            fix=_divide(source, backward, step, size),
        )


def _window_of(source: SourceFile, step: Op) -> tuple[Op, ast.expr] | None:
    """Return the only backward pass of the window that ends with a step, and the number of batches in the window."""
    loop = step.loops[-1]
    inside = source.ops_in_loop(loop, root=step.entry_point)
    backwards = [each for each in inside if each.kind is OpKind.BACKWARD]
    if len(backwards) != 1 or source.escapes(step.subject, inside) or not source.reaches(backwards[0], step.subject):
        return None
    backward, ends = backwards[0], accumulation_window(step, loop)
    if ends is not None:
        others = [each for each in inside if each.kind in (OpKind.STEP, OpKind.CLEAR_GRADIENTS)]
        waits = all((ends.branch.node, ends.branch.arm) in _arms(each, loop) for each in others)
        is_window = (
            waits
            and len(others) > 1
            and backward.same_iteration_as(step)
            and backward.is_unconditional_in(loop)
            and ends.iterations != 1
        )
        return (backward, ends.size) if is_window and is_batch_mean(source, backward, loop) else None
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
    fix="Divide each loss by the number of batches that are accumulated before the step.",
    rule=RULE,
    detector=Detector,
    inject=inject,
)
