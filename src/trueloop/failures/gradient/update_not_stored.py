"""The program computes new parameters from the gradients, but the model keeps the old ones.

What you see
    The loss does not move at all, whatever the learning rate. The gradients are right, and the update is in the code.

Why it happens
    ``p = p - lr * p.grad`` creates a new tensor and gives it the name ``p``. The parameter of the model, which had this
    name before, is unchanged. Only operations in place, such as ``p -= lr * p.grad``, change the parameter.

Fix
    Change the parameter in place, without recording the operation for the next backward pass.

        with torch.no_grad():
            for p in model.parameters():
                p -= lr * p.grad

When this is fine
    - The new tensors are used: as fast weights in meta-learning, or through ``functional_call``.
    - You only measure gradients, and compute no update.

How it is detected
    The sanitizer reports a program in which 12 backward passes reached the parameters of a model, none of its values
    changed, no optimizer ever stepped, and a line of the program computes ``x - y`` from a gradient and gives the
    result the name of ``x``.

References
    PyTorch tutorial "Learning PyTorch with Examples",
    https://docs.pytorch.org/tutorials/beginner/pytorch_with_examples.html
"""

import ast
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.program_files import parse_files
from trueloop.core.findings import Evidence, SourceLocation
from trueloop.failures.failure import BaseDetector, Failure, Severity, changed
from trueloop.tracing.events import BackwardEnded, Ref, StepSkipped, StepTaken
from trueloop.tracing.parameter_snapshot import first_values
from trueloop.tracing.running_code import user_modules

MIN_BACKWARDS: Final = 12


class Detector(BaseDetector):
    """Compares parameters over the first backward passes of a program that makes no updates."""

    def __init__(self) -> None:
        self._updated = False
        self._backwards = 0
        self._values: dict[Ref, tuple[float, ...]] = {}

    def on_step_taken(self, event: StepTaken) -> None:
        """Record that something is updated."""
        self._updated = True

    def on_step_skipped(self, event: StepSkipped) -> None:
        """Record that a GradScaler leaves out the update."""
        self._updated = True

    def on_backward_ended(self, event: BackwardEnded) -> Evidence | None:
        """Return evidence at the twelfth backward pass that left all values unchanged."""
        if self._updated or self._backwards >= MIN_BACKWARDS:
            return None
        reached = {ref: each for ref, each in event.live_parameters.items() if ref in event.reached_parameters}
        values = {ref: first_values(each) for ref, each in reached.items()}
        self._updated = any(self._values.get(ref, each) != each for ref, each in values.items())
        self._values.update(values)
        self._backwards += bool(reached)
        if self._updated or self._backwards < MIN_BACKWARDS:
            return None
        location = event.location and event.location.source_location
        files = [*([location.path] if location else ()), *user_modules().values()]
        found = next(_lost_updates(files), None)
        if found is None:
            return None
        where, text = found
        return Evidence(
            message=f"{MIN_BACKWARDS} backward passes did not change any of the {len(self._values)} parameters that "
            f"they reached: `{text}` creates a new tensor, and the model keeps the old parameter.",
            location=where,
        )

    def inconclusive(self) -> str:
        """Return a reason if there were few backward passes without an update."""
        return "" if self._updated or self._backwards >= MIN_BACKWARDS else f"{self._backwards} backward passes"


def _lost_updates(files: list[str]) -> Iterator[tuple[SourceLocation, str]]:
    """Yield each statement such as ``p = p - lr * p.grad``, with its text."""
    for file, tree in (parse_files(files) or {}).items():
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Assign)
                and isinstance(node.value, ast.BinOp)
                and isinstance(node.value.op, ast.Sub)
                and isinstance(node.targets[0], ast.Name)
                and ast.unparse(node.value.left) == node.targets[0].id
                and "grad" in ast.unparse(node.value.right)
            ):
                yield SourceLocation(file, node.lineno), ast.unparse(node)


BAD = """
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
for step in range(20):
    loss = nn.functional.mse_loss(model(x), y)
    model.zero_grad()
    loss.backward()
    with torch.no_grad():
        for p in model.parameters():
            p = p - 0.01 * p.grad
"""

FAILURE = Failure(
    code="GRD016",
    title="The update is computed but not stored in the model",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"p = p - 0.01 * p.grad": "p -= 0.01 * p.grad"}),
    fix="Change the parameter in place: `p -= lr * p.grad` under `torch.no_grad()`.",
    detector=Detector,
)
