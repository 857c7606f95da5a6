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
    In a run, the sanitizer looks at windows in which one line ran K > 1 backward passes before a step, each on a
    different batch and with losses that are means. It reports the second window in a row in which no loss was divided
    and nothing scaled the gradients before the step. It also reports the third window in which some losses were divided
    by K and others were not. The linter reports PyTorch's own losses that are not divided before ``backward()``, if
    nothing in the file divides by K or uses a ``.grad``. The program is correct if its learning rate was tuned for the
    sum, so this is a warning.

References
    PyTorch documentation "CUDA Automatic Mixed Precision examples", section on gradient accumulation,
    https://docs.pytorch.org/docs/stable/notes/amp_examples.html
    Hugging Face Accelerate guide "Performing gradient accumulation",
    https://huggingface.co/docs/accelerate/usage_guides/gradient_accumulation
"""

import ast
import math
import operator
from collections.abc import Iterator
from typing import Any

from trueloop.analysis.abstract_value import MANAGED, AbstractValue, ValueKind
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
from trueloop.tracing.events import (
    BackwardEnded,
    GradientsCleared,
    GradientsClipped,
    ModelCalled,
    Ref,
    StepTaken,
    TracingGap,
)
from trueloop.tracing.trackers.accumulation_windows import AccumulationWindows
from trueloop.tracing.trackers.gradient_ledger import GradientLedger

MIN_WINDOWS = 2  # after a single window, the program may only have measured gradients
MIN_MIXED_WINDOWS = 3  # with divided and undivided losses
MAX_BACKWARDS = 4096  # backward passes per window; windows with more are not checked
TOLERANCE = 1e-3  # relative, for weights and norms read in float32


class Detector(BaseDetector):
    """Checks whether the losses of an accumulation window were divided before ``backward()``."""

    gradients: GradientLedger
    windows: AccumulationWindows

    def __init__(self) -> None:
        self._backwards: list[BackwardEnded] = []
        self._norms: dict[Ref, float] = {}
        """Norm of each gradient after the latest of several backward passes, without GradScaler's factor."""
        self._norm_at_clipping: float | None = None
        self._undivided_windows = self._mixed_windows = 0
        self._inputs: list[Any] = []
        """Hashes of the samples of each backward pass in ``_backwards``."""
        self._latest_inputs: Any = None

    def on_model_called(self, event: ModelCalled) -> None:
        """Record the samples of a batch that no DataLoader returned, to recognise a batch that is used again."""
        if event.has_graph and not event.recomputed and event.loader is None:
            from trueloop.tracing.row_digests import row_digests

            self._latest_inputs = row_digests(event)

    def on_backward_ended(self, event: BackwardEnded) -> None:
        """Record the backward pass."""
        if len(self._backwards) < MAX_BACKWARDS:  # without an optimizer nothing ends a window
            self._backwards.append(event)
            self._inputs.append(self._latest_inputs)
        if len(self._backwards) > 1 and _weight(event) is not None:
            self._norms = _read_norms(event)

    def on_gradients_cleared(self, event: GradientsCleared) -> None:
        """Forget the backward passes whose gradients were not used."""
        self._backwards = [] if self.gradients.unused_when_cleared else self._backwards

    def on_gradients_clipped(self, event: GradientsClipped) -> None:
        """Record the norm that was measured for clipping."""
        self._norm_at_clipping = event.measured

    def on_tracing_gap(self, event: TracingGap) -> None:
        """Discard incomplete observations."""
        self._backwards, self._inputs, self._norm_at_clipping = [], [], None
        self._undivided_windows = 0

    def on_step_taken(self, event: StepTaken) -> Evidence | None:
        """Return evidence at the step that ends the second undivided window in a row, or the third mixed one."""
        backwards, self._backwards = self._backwards, []
        inputs, self._inputs = self._inputs, []
        norm, self._norm_at_clipping = self._norm_at_clipping or event.grad_norm, None
        if len(backwards) < 2:  # no accumulation, or another optimizer has already stepped
            return None
        weights = [_weight(ended) for ended in backwards]
        divided = [weight is not None and abs(weight * len(weights) - 1) < TOLERANCE for weight in weights]
        undivided = [weight is not None and abs(weight - 1) < TOLERANCE for weight in weights]
        norm_after_backward = math.hypot(*(self._norms.get(ref, math.nan) for ref in event.with_gradient))
        unscaled = norm is not None and abs(norm - norm_after_backward) <= TOLERANCE * norm
        distinct = len({ended.batch for ended in backwards}) == len(backwards)
        # Backward passes that reach different parameters belong to several tasks.
        if not distinct and len({ended.reached_parameters for ended in backwards}) == 1:
            distinct = _have_no_common_samples(inputs)
        # backward passes of several lines or loaders may belong to different tasks
        one_line = len({(ended.loader, ended.location) for ended in backwards}) == 1
        window = self.windows.ended_by(event.optimizer)
        is_window = unscaled and distinct and one_line and len(backwards) == window.backwards
        self._undivided_windows = self._undivided_windows + 1 if is_window and all(undivided) else 0
        is_mixed = is_window and all(map(operator.or_, divided, undivided)) and any(divided) and any(undivided)
        self._mixed_windows += is_mixed
        count, whole = len(backwards), sum(undivided)
        if self._undivided_windows >= MIN_WINDOWS:
            what = f"no loss was divided by {count}, so the gradients are {count} times too large."
        elif is_mixed and self._mixed_windows == MIN_MIXED_WINDOWS:
            what = f"{count - whole} of the losses were divided by {count} and {whole} were not, so the batches have "
            what += "different weights."
        else:
            return None
        return Evidence(
            message=f"{event.optimizer_name} used the sum of the gradients of {count} batches: {what}",
            location=backwards[-1].location,
            related=((event.location, "the step"),) if event.location else (),
            fix=f"Divide by the number of batches in the window: `(loss / {count}).backward()`.",
        )


def _read_norms(event: BackwardEnded) -> dict[Ref, float]:
    """Return the norms of all gradients, without GradScaler's factor; {} if they are on a GPU."""
    from trueloop.tracing.gradients import gradient_norms

    gradients = {ref: each.grad for ref, each in event.live_parameters.items() if each.grad is not None}
    norms = gradient_norms(list(gradients.values())) or ()
    return {ref: norm / (event.scale or 1.0) for ref, norm in zip(gradients, norms, strict=False)}


def _weight(ended: BackwardEnded) -> float | None:
    """Return the total factor of a backward pass's losses, 1 if undivided; None unless all are means of one kind."""
    weights = [loss.gradient_weight for loss in ended.losses if loss.reduction == "mean"]
    known = [weight for weight in weights if weight is not None]
    is_known = len(known) == len(ended.losses) and len({loss.kind for loss in ended.losses}) == 1
    return sum(known) if is_known else None


def _have_no_common_samples(batches: list[Any]) -> bool:
    """Return True if no sample occurs in two batches, given the hashes of their samples; on the CPU only."""
    if any(batch is None or not batch.is_cpu for batch in batches) or len(set(map(id, batches))) < len(batches):
        return False
    distinct = [set(batch.tolist()) for batch in batches]
    return sum(map(len, distinct)) == len(set[int]().union(*distinct))


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield the backward pass of each window whose loss is a mean over a batch and is not divided."""
    reported: set[int] = set()
    for step in source.ops(OpKind.STEP):
        if step.subject.kind is not ValueKind.OPTIMIZER or MANAGED in step.subject.facts or not step.loops:
            continue
        yield from _scaled_in_one_branch(source, step)
        window = _window_of(source, step)
        if window is None or id(window[0].node) in reported or accesses_grad(source) or divides_by(source, window[1]):
            continue
        backward, size = window
        reported.add(id(backward.node))
        yield Hit(
            message=f"`{ast.unparse(backward.node)}` adds up the gradients of `{ast.unparse(size)}` batches, but the "
            "losses are not divided by that number.",
            node=backward.node,
            related=((step.node, "the step"),),
            fix=_divide(source, backward, step, size),
        )


def _scaled_in_one_branch(source: SourceFile, step: Op) -> Iterator[Hit]:
    """Yield the backward passes whose loss is divided by the number of batches in one branch, but not in another."""
    window = accumulation_window(step, step.loops[-1])
    inside = source.ops_in_loop(step.loops[-1], OpKind.BACKWARD, root=step.entry_point)
    if window is None or window.iterations == 1:
        return
    size = ast.unparse(window.size)
    for backward in inside:
        losses = list(backward.subject.alternatives()) if backward.subject.union else []
        divided = [each for each in losses if _is_divided(each, window.size)]
        others = [each for each in losses if each not in divided]
        if not divided or not others or not all(isinstance(each.node, ast.expr) for each in losses):
            continue
        if any(_is_under_condition_on(source, each.node, window.size) for each in divided):
            continue  # if steps > 1: loss = loss / steps
        yield Hit(
            message=f"`{ast.unparse(backward.node)}` adds up the gradients of `{size}` batches, but the loss is "
            "divided by that number in one branch only.",
            node=backward.node,
            related=((others[0].node, "not divided here"), (divided[0].node, "divided here"), (step.node, "the step")),
        )


def _is_under_condition_on(source: SourceFile, node: Any, size: ast.expr) -> bool:
    """Return True if the value of a loss depends on a condition on the number of batches in a window."""
    name = ast.unparse(size).rpartition(".")[2]
    parent = source.parents.get(id(node))
    while parent is not None:
        if isinstance(parent, ast.If | ast.IfExp) and name in ast.unparse(parent.test):
            return "%" not in ast.unparse(parent.test)
        parent = source.parents.get(id(parent))
    return False


def _is_divided(loss: AbstractValue, size: ast.expr) -> bool:
    """Return True if a loss was divided by the number of batches in a window, or may have been."""
    name = ast.unparse(size).rpartition(".")[2]
    return any(isinstance(each.node, ast.expr) and name in ast.unparse(each.node) for each in loss.ancestors())


def _window_of(source: SourceFile, step: Op) -> tuple[Op, ast.expr] | None:
    """Return the only backward pass of the window that ends with a step, and the number of batches in the window."""
    loop = step.loops[-1]
    inside = source.ops_in_loop(loop, root=step.entry_point)
    backwards = [each for each in inside if each.kind is OpKind.BACKWARD]
    if len(backwards) != 1 or source.escapes(step.subject, inside) or not source.reaches(backwards[0], step.subject):
        return None
    backward, window = backwards[0], accumulation_window(step, loop)
    if window is not None:
        others = [each for each in inside if each.kind in (OpKind.STEP, OpKind.CLEAR_GRADIENTS)]
        only_at_end = all((window.branch.node, window.branch.arm) in _branch_arms(each, loop) for each in others)
        is_window = (
            only_at_end
            and len(others) > 1
            and backward.same_iteration_as(step)
            and backward.is_unconditional_in(loop)
            and window.iterations != 1
        )
        return (backward, window.size) if is_window and is_batch_mean(source, backward, loop) else None
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


def _branch_arms(operation: Op, loop: Loop) -> list[tuple[Any, int]]:
    return [(each.node, each.arm) for each in operation.conditions(loop)]


def _divide(source: SourceFile, backward: Op, step: Op, size: ast.expr) -> Fix | None:
    """Return the fix that divides the loss by the size of its window in the call of ``backward()``."""
    call = backward.node
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "backward":
        return None
    in_scope = backward.function is step.function or isinstance(size, ast.Constant)
    loss: ast.expr = call.func.value
    has_scaler = bool(backward.inputs)
    if has_scaler:
        if not isinstance(loss, ast.Call) or len(loss.args) != 1:
            return None
        loss = loss.args[0]
    if not in_scope or not isinstance(loss, ast.Name | ast.Attribute | ast.Call | ast.Subscript):
        return None
    text = f"{source.text.segment(loss)} / {source.text.segment(size)}"
    edit = source.text.replace(loss, text if has_scaler else f"({text})")
    return Fix((edit,), safe=False, description="Divide the loss by the number of batches in its window")


RULE = Rule(required_words=("backward(", ".step(", "%|range"), find=find)


def inject(loop: TeachingLoop) -> None:
    """Inject this failure into the teaching loop."""
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
