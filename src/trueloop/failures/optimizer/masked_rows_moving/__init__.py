"""Rows whose gradients the program sets to zero still move, because of weight decay or momentum.

What you see
    Pretrained embeddings that should not change drift: they shrink a little at every update, or keep moving for a
    while after they were frozen.

Why it happens
    A zero gradient is not a missing gradient. Weight decay, and the momentum of earlier gradients, change a weight at
    each step of its optimizer, also where its gradient is zero.

Fix
    Put the rows into a parameter of their own that is not trained, or exclude the parameter from weight decay.

        frozen = nn.Embedding.from_pretrained(vectors, freeze=True)
        new = nn.Embedding(new_words, dim)

    Or restore the rows after each step.

When this is fine
    - Rows that are not in the batch have a gradient of zero by nature, and decay as all others.
    - The optimizer has neither weight decay nor momentum, so the rows do not move.
    - The program restores the rows after the step.

How it is detected
    The sanitizer compares the gradients of matrices before and after a hook, and after the backward pass and before the
    step. It reports rows that got a gradient, were set to zero by the program, and changed in 4 updates nevertheless.

References
    torch.Tensor.register_hook, https://docs.pytorch.org/docs/stable/generated/torch.Tensor.register_hook.html
    torch.optim.AdamW, https://docs.pytorch.org/docs/stable/generated/torch.optim.AdamW.html
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any, Final

from trueloop.core.findings import CodePosition, Evidence
from trueloop.failures.failure import BaseDetector, Failure, Severity, changed
from trueloop.tracing.events import BackwardEnded, Event, Ref, StepStarted, StepTaken

MIN_UPDATES: Final = 4
MAX_VALUES: Final = 4_000_000  # in a matrix that is compared
MAX_COMPARED: Final = 24  # updates


@dataclass(slots=True, kw_only=True, eq=False)
class GradientRows(Event):
    """A parameter with a hook of the program got a gradient; emitted before the hook changes it."""

    parameter: Ref
    rows: Any
    """Which rows of the gradient are not zero, as a tensor of shape (rows,)."""


class Detector(BaseDetector):
    """Compares the rows of gradients before and after the program changed them, and the rows of weights."""

    def __init__(self) -> None:
        self._received: weakref.WeakKeyDictionary[Ref, Any] = weakref.WeakKeyDictionary()
        """Matrix -> which rows of its gradient are not zero, since the latest step."""
        self._versions: weakref.WeakKeyDictionary[Ref, tuple[int, int]] = weakref.WeakKeyDictionary()
        """Matrix -> its gradient after the latest backward pass, as identity and version."""
        self._edited: weakref.WeakSet[Ref] = weakref.WeakSet()
        """Matrices whose gradients the program has changed between a backward pass and a step."""
        self._hooked_at: weakref.WeakKeyDictionary[Ref, CodePosition | None] = weakref.WeakKeyDictionary()
        self._masked: weakref.WeakKeyDictionary[Ref, tuple[Any, Any]] = weakref.WeakKeyDictionary()
        """Matrix of the running step -> its rows that were set to zero, and their values before the step."""
        self._moved: weakref.WeakKeyDictionary[Ref, int] = weakref.WeakKeyDictionary()
        self._steps = 0

    def on_gradient_rows(self, event: GradientRows) -> None:
        """Record the gradient before a hook of the program."""
        self._received[event.parameter] = event.rows
        self._hooked_at[event.parameter] = event.location

    def on_backward_ended(self, event: BackwardEnded) -> None:
        """Record the gradients of matrices, which the program may still change."""
        if self._steps >= MAX_COMPARED:
            return
        for ref, each in event.live_parameters.items():
            if ref in self._received or not _is_matrix(each) or ref not in event.reached_parameters:
                continue
            self._versions[ref] = _version(each.grad)
            if ref in self._edited:
                self._received[ref] = _rows(each.grad)

    def on_step_started(self, event: StepStarted) -> None:
        """Find the rows that were set to zero."""
        self._masked.clear()
        if self._steps >= MAX_COMPARED:
            return
        for ref, version in self._versions.items():
            parameter = event.live_parameters.get(ref)
            if parameter is not None and parameter.grad is not None and _version(parameter.grad) != version:
                self._edited.add(ref)
        for ref, rows in self._received.items():
            parameter = event.live_parameters.get(ref)
            if parameter is None or not _is_matrix(parameter):
                continue
            left = rows & _rows(parameter.grad)
            masked = rows ^ left
            if bool(masked.any()) and bool(left.any()):
                self._masked[ref] = masked, parameter.detach()[masked].clone()

    def on_step_taken(self, event: StepTaken) -> Evidence | None:
        """Return evidence at the fourth update that changed such rows."""
        self._steps += 1
        if self._steps > MAX_COMPARED:
            self.ignore(BackwardEnded, GradientRows, StepStarted, StepTaken)
        self._received.clear()
        self._versions.clear()
        for ref, (rows, before) in self._masked.items():
            after = event.live_parameters[ref].detach()[rows]
            self._moved[ref] = self._moved.get(ref, 0) + bool((after != before).any())
            if self._moved[ref] == MIN_UPDATES:
                return Evidence(
                    message=f"The program sets the gradients of {len(before)} of {len(rows)} rows of {ref.name} to "
                    f"zero, "
                    f"but {event.optimizer.name} changes these rows all the same, by up to "
                    f"{float((after - before).abs().max()):.2g} in this update: weight decay and momentum do not "
                    f"need a "
                    "gradient.",
                    location=self._hooked_at.get(ref) or event.location,
                )
        return None

    def inconclusive(self) -> str:
        """Return a reason if no update was traced."""
        return "" if self._steps else "no update was traced"


def _is_matrix(parameter: Any) -> bool:
    gradient = parameter.grad
    dense = gradient is not None and gradient.is_cpu and str(gradient.layout) == "torch.strided"
    return dense and parameter.ndim > 1 and parameter.numel() <= MAX_VALUES


def _version(gradient: Any) -> tuple[int, int]:
    return id(gradient), gradient._version  # noqa: SLF001


def _rows(gradient: Any) -> Any:
    return gradient.detach().flatten(1).any(1)


BAD = """
import torch
from torch import nn

torch.manual_seed(0)
embedding, head = nn.Embedding(40, 8), nn.Linear(8, 2)
optimizer = torch.optim.AdamW([*embedding.parameters(), *head.parameters()], lr=0.01, weight_decay=0.1)
for step in range(20):
    words = torch.randint(0, 40, (32, 6))
    loss = nn.functional.cross_entropy(head(embedding(words).mean(1)), words[:, 0] % 2)
    optimizer.zero_grad()
    loss.backward()
    embedding.weight.grad[:30] = 0
    optimizer.step()
"""

FAILURE = Failure(
    code="OPT011",
    title="Rows with gradients set to zero still move",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"torch.optim.AdamW(": "torch.optim.SGD(", ", weight_decay=0.1": ""}),
    fix="Keep the frozen rows in a parameter of their own with requires_grad=False.",
    detector=Detector,
)
