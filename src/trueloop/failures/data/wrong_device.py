"""The loss is computed on the CPU although the model runs on the GPU.

What you see
    The GPU is idle much of the time, and one CPU core is busy. A smaller model is hardly faster.

Why it happens
    PyTorch allows you to move the output to the CPU. With ``loss_fn(model(x).cpu(), y)`` the loss and its gradient are
    computed on the CPU, and every update waits until the output is copied to the CPU and its gradient back to the GPU.

Fix
    Move the targets to the device of the output.

        loss = loss_fn(output, y.to(output.device))  # not loss_fn(output.cpu(), y)

When this is fine
    - You compute metrics on the CPU from detached outputs.
    - You move each batch to the GPU when it is needed.
    - The model is spread over several devices on purpose.
    - The optimizer stores its running averages in CPU memory.
    - In reinforcement learning, the actors run on the CPU and the learner on the GPU.

How it is detected
    In a run, the sanitizer reports three successive backward passes in which the targets of the loss are on the CPU and
    the output of the model is on a GPU or another accelerator. The result is correct but slow, so this is a note. The
    check was tested with PyTorch's "meta" device only, not on a GPU. A model that runs on the CPU is not checked.

References
    CUDA semantics, "Asynchronous execution", https://docs.pytorch.org/docs/stable/notes/cuda.html
    PyTorch Performance Tuning Guide, "Avoid unnecessary CPU-GPU synchronization",
    https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
"""

import sys
from typing import Any

from trueloop.core.findings import Evidence
from trueloop.failures.failure import BaseDetector, Failure, Severity, changed
from trueloop.tracing.events import BackwardEnded, BackwardLosses, ModelCalled, Refs

MIN_BACKWARDS = 3  # number of successive backward passes


class Detector(BaseDetector):
    """Compares the device of the newest model output with the device of the targets of its loss."""

    def __init__(self) -> None:
        self._output: tuple[str, Refs] | None = None
        """Accelerator of the newest model output and the parameters of that model; None for an output on the CPU."""
        self._suspect: BackwardLosses | None = None
        self._count = 0
        self._used_accelerator = False
        self._unread_reason = ""

    def on_model_called(self, event: ModelCalled) -> None:
        """Record the call of the model."""
        device = _accelerator_type(event.output)
        self._output = None if device is None else (device, event.parameters)
        self._used_accelerator |= device is not None

    def on_backward_losses(self, event: BackwardLosses) -> None:
        """Record the losses."""
        self._suspect = event if self._is_on_cpu(event) else None

    def _is_on_cpu(self, event: BackwardLosses) -> bool:
        if self._output is None:
            return False
        for loss in event.losses:
            self._unread_reason = self._unread_reason or loss.unreadable_reason
        return any(loss.targets is not None and loss.targets.device.type == "cpu" for loss in event.losses)

    def on_backward_ended(self, event: BackwardEnded) -> Evidence | None:
        """Return evidence in the third backward pass in a row with a loss on the CPU."""
        suspect, self._suspect = self._suspect, None
        if suspect is None or self._output is None or event.reached_parameters.isdisjoint(self._output[1]):
            self._count = 0
            return None
        self._count += 1
        if self._count != MIN_BACKWARDS:
            return None
        return Evidence(
            message=f"In {MIN_BACKWARDS} successive backward passes the model's output was on "
            f"{self._output[0]}, but the loss was computed on the CPU.",
            location=suspect.location,
        )

    def inconclusive(self) -> str:
        """Return a reason if no model returned an output on an accelerator."""
        return self._unread_reason if self._used_accelerator else "no model ran on an accelerator"


def _accelerator_type(output: Any) -> str | None:
    first: Any = output[0] if type(output) in (tuple, list) and output else output
    if getattr(first, "is_cpu", True) or not isinstance(first, sys.modules["torch"].Tensor):
        return None
    return first.device.type


BAD = """
import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(6, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
x, y = torch.randn(64, 6), torch.randn(64, 1)
for update in range(5):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x.to(device)).cpu(), y).backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="DAT006",
    title="Loss is computed on the CPU, model runs on the GPU",
    severity=Severity.NOTE,
    bad=BAD,
    good=changed(
        BAD,
        {
            "nn.functional.mse_loss(model(x.to(device)).cpu(), y).backward()": (
                "nn.functional.mse_loss(model(x.to(device)), y.to(device)).backward()"
            )
        },
    ),
    fix="Move the targets to the device of the output: loss_fn(output, y.to(output.device)).",
    detector=Detector,
)
