"""A step uses gradients that are NaN or infinite, which makes the weights NaN.

What you see
    The loss is ``nan`` from some update on. The weights become NaN and stay NaN, and so does Adam's state.

Why it happens
    NaN is a valid floating-point value, so an optimizer adds it to the weights without an error.

Fix
    Find the first update with a NaN and its cause: an empty batch or mask, a logarithm of zero or a division by zero, a
    learning rate that is too high, or an overflow in float16. Skip a step whose gradient norm is not finite.

        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if norm.isfinite():
            optimizer.step()

When this is fine
    - You use a GradScaler, which skips steps with infinite or NaN gradients.
    - Your program checks the loss or the gradients and skips the step.
    - Your program loads its last good weights before the next step.

How it is detected
    In a run, the sanitizer reads the gradients when a step uses them, on the CPU only, because reading them from a GPU
    would slow down training. A program that skips every step trains nothing: this is a warning if the run ends after
    24 or more calls of a model in train mode without a step, and the outputs of all but the first 8 contain NaN. A loss
    whose prediction and target are swapped is reported as LOS008 instead.

    To find the cause, the sanitizer runs the batch once more just before the step, on a copy of the model, and examines
    the graph of the loss. It does not do so where it could affect the program: with several processes, with forward
    hooks, or when the batch no longer exists.

References
    torch.autograd.detect_anomaly, https://docs.pytorch.org/docs/stable/autograd.html
    torch.nn.utils.clip_grad_norm_ and error_if_nonfinite,
    https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_norm_.html
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any, cast

from trueloop.core.findings import CodePosition, Evidence
from trueloop.core.formatting import format_count
from trueloop.failures.failure import BaseDetector, Failure, Severity, changed
from trueloop.failures.teaching_script import Piece, line_injector
from trueloop.tracing.events import (
    LossArgumentsSwapped,
    ModelCalled,
    NonFiniteValue,
    PartlyTracedStep,
    Ref,
    StateLoaded,
    StepTaken,
    TracingGap,
    WatchEnded,
)
from trueloop.tracing.trackers.accumulation_windows import AccumulationWindows

MAX_UNREAD = 8  # calls of models since a step whose outputs are not read, so that normal training costs nothing
MIN_NAN = 16  # calls after those, all with NaN, in a run that skips every step
MAX_VALUES = 1 << 20  # values of an output that are read


class Detector(BaseDetector):
    """Records the first loss that was not finite, and checks the gradients of each step."""

    windows: AccumulationWindows

    def __init__(self) -> None:
        self._loss: NonFiniteValue | None = None
        self._cause: NonFiniteValue | None = None
        """The cause that was found by running the batch again; None while there is none."""
        self._read = self._swapped = False
        self._calls = self._nan_calls = 0
        """Number of calls of models in train mode since the latest step, and how many of them returned NaN."""
        self._called_at: CodePosition | None = None
        self._nan_input = False
        self._pending: Evidence | None = None
        """Evidence of the latest step, which holds unless the program takes the step back before its next one."""

    def on_model_called(self, event: ModelCalled) -> None:
        """Look for NaN in the output, once the program has called models many times without a step."""
        if not event.training or not event.has_graph or event.recomputed:
            return
        self._calls += 1
        if self._calls > MAX_UNREAD and _contains_nan(event.output):
            self._nan_calls += 1
            self._called_at, self._nan_input = event.location, _contains_nan(event.inputs)

    def on_tracing_gap(self, event: TracingGap) -> None:
        """Forget the calls since the latest step."""
        self._calls = self._nan_calls = 0

    def on_partly_traced_step(self, event: PartlyTracedStep) -> None:
        """Forget the calls since the latest step."""
        self._calls = self._nan_calls = 0

    def on_watch_ended(self, event: WatchEnded) -> Evidence | None:
        """Return evidence of the last step, or if the program has skipped all steps because of NaN."""
        if self._pending is not None:
            return self._pending
        if self._nan_calls < MIN_NAN or self._nan_calls < self._calls - MAX_UNREAD:
            return None
        cause = "its input" if self._nan_input else "its output, but not its input,"
        return Evidence(
            message=f"The model's output contained NaN in the last {self._nan_calls} calls, and no step followed: "
            f"every batch was skipped, so nothing was trained. In the last call, {cause} contains NaN.",
            location=self._called_at,
            severity=Severity.WARNING,
            fix="Find out where the NaN comes from: a missing value, or a division by zero when the data is scaled.",
            first_update=event.update,
        )

    def on_non_finite_value(self, event: NonFiniteValue) -> None:
        """Record the value."""
        if event.what == "gradient":
            self._cause = event
        else:
            self._loss = self._loss or event

    def on_state_loaded(self, event: StateLoaded) -> None:
        """Forget the latest step if the program takes it back."""
        if event.what == "model":
            self._pending = None

    def on_step_taken(self, event: StepTaken) -> Evidence | None:
        """Return evidence of an earlier step on gradients that are not finite."""
        pending, self._pending = self._pending, self._judge(event)
        return pending

    def _judge(self, event: StepTaken) -> Evidence | None:
        self._calls = self._nan_calls = 0
        self._read |= event.grad_norm is not None
        nonfinite: list[Ref] = []
        if event.grad_norm is not None and not math.isfinite(event.grad_norm):
            nonfinite = [ref for ref, norm in event.gradient_norms.items() if not math.isfinite(norm)]
        if not nonfinite:
            self._swapped = False
            if self._loss is not None and self._loss.update < event.update:  # the program skipped that batch
                self._loss = None
            return None
        if event.scaler is not None or self._swapped:  # a fused optimizer skips this step itself; LOS008 reports swaps
            return None
        return self._evidence(event, nonfinite)

    def on_loss_arguments_swapped(self, event: LossArgumentsSwapped) -> None:
        """Record the arguments."""
        self._swapped |= bool(event.input_is_binary)

    def _evidence(self, event: StepTaken, nonfinite: Sequence[Ref]) -> Evidence:
        loss, count, backward = self._loss, len(nonfinite), self.windows.latest_backward
        cause = self._cause if self._cause is not None and self._cause.update == event.update else None
        names = ", ".join(sorted(ref.name for ref in nonfinite)[:3])
        earlier = f" The loss was already {loss.value} at update {loss.update}." if loss else ""
        lines = (
            (loss and loss.location, "the loss was not finite here"),
            (cause and cause.operation_location, "the first non-finite value"),
        )
        return Evidence(
            message=f"{event.call} used {format_count(count, 'gradient')} that "
            f"{'is' if count == 1 else 'are'} not finite ({names}{', ...' if count > 3 else ''})."
            f"{earlier}{_describe_origin(loss, cause, backward.root_value if backward else None)}",
            location=event.location,
            related=tuple((line, label) for line, label in lines if line),
            first_update=loss.update if loss else event.update,
        )

    def inconclusive(self) -> str:
        """Return a reason if no gradient could be read."""
        return "" if self._read else "no gradient could be read: there was none, or not on the CPU"


def _contains_nan(output: Any) -> bool:
    """Return True if some tensor in an output on the CPU contains NaN."""
    from trueloop.tracing.row_digests import has_storage  # it imports PyTorch, and `trueloop lint` does not

    tensors = output.values() if isinstance(output, dict) else output if isinstance(output, list | tuple) else (output,)
    return any(
        has_storage(each) and each.is_cpu and each.numel() <= MAX_VALUES and bool(each.isnan().any())
        for each in cast("Iterable[Any]", tensors)
        if hasattr(each, "isnan")
    )


def _describe_origin(loss: NonFiniteValue | None, cause: NonFiniteValue | None, value: float | None) -> str:
    """Return sentences about the cause, if running the batch again or the graph of the loss has shown it."""
    sentences: list[str] = []
    if cause is not None and cause.gradient_only and loss is None:
        sentences.append(f"The gradient of {cause.operation} in {cause.module} is infinite{_input(cause)}")
    elif cause is not None and cause.operation and not cause.gradient_only:
        sentences.append(f"The first non-finite value came from {cause.operation} in {cause.module}{_input(cause)}")
        if cause.output_finite:
            sentences.append("It did not reach the model's output, but gradients flow through it")
    elif cause is not None and cause.input_summary:
        sentences.append(f"The cause is the input: {cause.input_summary}")
    elif cause is not None and cause.output_finite and loss is not None and loss.update == cause.update:
        sentences.append(f"The model's output was finite: the loss became {loss.value} before `backward()`")
    elif cause is not None and cause.output_finite and value is not None and math.isfinite(value):
        sentences.append(
            f"The model's output and the loss ({value:.3g}) were finite: only the gradient is not. Look for log, sqrt "
            "or a division by zero between the model and `backward()`, also where the result is masked afterwards"
        )
    if loss is not None and loss.operation and (cause is None or cause.gradient_only or not cause.operation):
        sentences.append(f"In the loss it came from {loss.operation}{_input(loss)}")
    return "".join(f" {sentence}." for sentence in sentences)


def _input(event: NonFiniteValue) -> str:
    return f", whose input was {event.input_summary}" if event.input_summary else ""


BAD = """
import torch
from torch import nn

x = torch.rand(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(8):
    optimizer.zero_grad()
    error = model(x) - y
    loss = (error * (step < 4)).abs().sqrt().mean()
    loss.backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="GRD007",
    title="Optimizer steps on NaN or infinite gradients",
    severity=Severity.ERROR,
    bad=BAD,
    good=changed(
        BAD, {"loss = (error * (step < 4)).abs().sqrt().mean()": "loss = (error.square() + 1e-6).sqrt().mean()"}
    ),
    fix="Find the first update with a NaN and its cause, and skip a step whose gradient norm is not finite.",
    detector=Detector,
    inject=line_injector(Piece.DATA, 'points[1, 0] = float("nan")  # a value is missing in the source'),
)
