"""Outputs (N, 1) are compared with labels (N,), so each output is compared with the labels of all samples.

What you see
    The accuracy is far above 1, or near the share of one class, whatever the model predicts; the loss falls as it
    should. A mean absolute error stays at the spread of the labels.

Why it happens
    ``Linear(n, 1)`` returns (N, 1), and the labels of a loader are (N,). For the loss the program gives both one shape,
    as with ``labels.unsqueeze(1)``, but the comparison uses the original tensors. PyTorch broadcasts them to (N, N)
    without a warning.

Fix
    Change the shape once, where the batch or the output is made, and use the result for loss and metric.

        outputs = model(x).squeeze(1)
        loss = criterion(outputs, labels)
        correct += ((outputs > 0) == labels).sum().item()

When this is fine
    - All pairs are compared on purpose, as in a mask of samples with equal labels: ``labels[:, None] == labels``.
    - The pairs are reduced in one dimension, as in a search for the nearest label: ``(outputs - labels).argmin(1)``.
    - Both sides have one column, or the labels are one-hot.
    - ``labels.view_as(predicted)`` gives both the same shape.

How it is detected
    In a run, the sanitizer reads the shapes of tensors that are compared after a model has returned (N, 1), in one call
    or in several calls together: one has that shape and the other (N,). Views of the same labels, and equal values, are
    compared on purpose. Between a call of a model in eval mode, or without a graph, and the next backward pass it reads
    the shapes of differences too, of products that are added up, of arrays in ``np.mean(predicted - labels)``, and of
    PyTorch's losses, unless the source code adds a dimension for it or reduces the pairs in one dimension. It also
    reads the shapes of the variables that a loop over a loader compares or subtracts, and sums. The linter knows the
    shapes from a loss of the same model that changes one of its arguments: ``labels.unsqueeze(1)`` or
    ``outputs.squeeze(1)``; it also follows batches that are collected in lists and joined by ``torch.cat``. It also
    reports sums and means of ``==``, ``!=`` and ``eq`` whose sides have these shapes by what creates them: a last layer
    ``Linear(n, 1)``, and labels of a function such as ``train_test_split`` or of a dataset; for a function, in each of
    its calls. Differences by ``torch.sub`` and by methods of NumPy arrays, as in ``(predicted - labels).mean()``, are
    not detected in a run.

References
    Broadcasting semantics, https://docs.pytorch.org/docs/stable/notes/broadcasting.html
    torch.eq, https://docs.pytorch.org/docs/stable/generated/torch.eq.html
"""

from dataclasses import dataclass

from trueloop.core.findings import Evidence, SourceLocation
from trueloop.failures.evaluation.compared_with_all_labels.rule import RULE
from trueloop.failures.failure import BaseDetector, Failure, Severity, changed
from trueloop.tracing.events import Event


@dataclass(slots=True, kw_only=True, eq=False)
class OutputsCompared(Event):
    """The program compared what may be the output of a model with what may be its labels."""

    text: str
    """The comparison."""
    compared_at: SourceLocation
    output_shape: tuple[int, ...]
    label_shape: tuple[int, ...]


class Detector(BaseDetector):
    """Checks the shapes of compared tensors."""

    def __init__(self) -> None:
        self._judged = False

    def on_outputs_compared(self, event: OutputsCompared) -> Evidence | None:
        """Return evidence of a comparison of (N, 1) with (N,)."""
        self._judged = True
        samples = event.output_shape[0] if event.output_shape else 0
        if samples < 2 or {event.output_shape, event.label_shape} != {(samples, 1), (samples,)}:
            return None
        wide = "outputs" if len(event.output_shape) == 2 else "labels"
        return Evidence(
            message=f"`{event.text or '=='}` compares {samples * samples} pairs instead of {samples} samples: the "
            f"outputs have the shape {event.output_shape} and the labels {event.label_shape}.",
            location=event.compared_at,
            fix=f"Give both the same shape: call squeeze(1) on the {wide}.",
            dedup_key=event.text,
        )

    def inconclusive(self) -> str:
        """Return a reason if no such comparison was seen."""
        return "" if self._judged else "no comparison of outputs with labels was seen"


BAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(240, 8)
loader = DataLoader(TensorDataset(x, (x.sum(1) > 0).float()), batch_size=16, shuffle=True)
model = nn.Linear(8, 1)
criterion = nn.BCEWithLogitsLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
for epoch in range(3):
    correct = 0
    for inputs, labels in loader:
        optimizer.zero_grad()
        outputs = model(inputs)
        criterion(outputs, labels.unsqueeze(1)).backward()
        optimizer.step()
        correct += ((outputs > 0) == labels).sum().item()
    print("accuracy", correct / len(loader.dataset))
"""

FAILURE = Failure(
    code="EVL018",
    title="Outputs are compared with the labels of all samples",
    severity=Severity.WARNING,
    doc=__doc__ or "",
    bad=BAD,
    good=changed(BAD, {"((outputs > 0) == labels)": "((outputs > 0).squeeze(1) == labels)"}),
    fix="Give outputs and labels the same shape before the comparison: `outputs.squeeze(1)`.",
    rule=RULE,
    detector=Detector,
)
