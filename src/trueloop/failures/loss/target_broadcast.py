"""Predictions (B, 1) and targets (B,) are broadcast, so every prediction is compared with every target.

What you see
    A regression learns to predict the mean of the targets and stays there, at a loss equal to their variance. The
    output of ``Linear(n, 1)`` is (B, 1), the targets of the loader are (B,), and the loss is over B x B pairs.

Why it happens
    Different shapes are broadcast. PyTorch warns ("Using a target size that is different to the input size"), once,
    and many programs filter warnings.

Fix
    Give both the same shape, by ``squeeze`` or ``unsqueeze``.

        mse_loss(predictions, targets)  # wrong: (B, 1) and (B,)
        mse_loss(predictions.squeeze(1), targets)  # right

When this is fine
    - Intended pairs, as in quantile regression or contrastive losses: an axis added just before, or one on both sides.
    - ``expand`` on one side, or a prediction for the whole batch, (1,) against (B,).
    - Targets of one column against predictions of one column.

How it is detected
    The loss is over (B, 1) against (B,), in either order, both expanded to B x B, and a model was just called for B
    samples. Or one of them against targets of B x B whose values prove that they came from (B, 1) and (B,), as
    ``rewards + gamma * next_q.max(1)[0]`` does; this is checked on the CPU only, for 8 to 1024 samples.

References
    torch.nn.MSELoss, https://docs.pytorch.org/docs/stable/generated/torch.nn.MSELoss.html
    Broadcasting semantics, https://docs.pytorch.org/docs/stable/notes/broadcasting.html
"""

import sys
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

from trueloop.core.findings import Evidence
from trueloop.failures.failure import BaseDetector, Failure, Severity, changed
from trueloop.tracing.events import BackwardLosses, ModelCalled

MIN_SAMPLES: Final = 8  # fewer values of targets prove nothing
MAX_SAMPLES: Final = 1024  # more would take longer than 20 ms to check
TOLERANCE: Final = 1e-4  # relative to the largest target: rounding


class Detector(BaseDetector):
    """Finds losses over all pairs of as many samples as a model was called for."""

    subscribes_to = (ModelCalled, BackwardLosses)

    def __init__(self) -> None:
        self._samples: deque[int] = deque(maxlen=16)
        self._checked = False
        self._unread = ""

    def observe(self, event: ModelCalled | BackwardLosses) -> Iterator[Evidence]:
        """Return evidence for each loss over all pairs."""
        if isinstance(event, ModelCalled):
            self._samples.extend(_samples(event.output))
            return
        for loss in event.losses:
            self._checked = True
            if loss.broadcast is None:
                if loss.kind == "l1" and loss.location is None:  # written by hand: only its differences show it
                    self._unread = loss.unreadable_reason
                continue
            prediction, target = loss.broadcast
            samples = prediction[0] if prediction else 0
            per_sample = {(samples, 1), (samples,)}
            broadcast_before = (
                prediction in per_sample and target == (samples, samples) and _are_broadcast(loss.targets, samples)
            )
            if (
                samples < 2
                or samples not in self._samples
                or not (broadcast_before or {prediction, target} == per_sample)
            ):
                continue
            last = "predictions" if len(prediction) == 2 else "targets"
            yield Evidence(
                message=f"Predictions {_shape(prediction)} and targets {_shape(target)} are broadcast against each "
                f"other: the loss is over {samples * samples} pairs instead of {samples} samples.",
                location=loss.location or event.location,
                related=((event.location, "the backward"),) if loss.location and event.location else (),
                fix=f"The targets were computed from ({samples}, 1) and ({samples},): give these the same shape."
                if broadcast_before
                else f"Give both the same shape: squeeze the {last}' last axis.",
                dedup_key=loss.kind,
            )

    def inconclusive(self) -> str:
        """Return a reason if no PyTorch loss was found."""
        return self._unread or ("" if self._checked else "no PyTorch loss was found in a graph")


def _shape(shape: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def _are_broadcast(targets: Any, samples: int) -> bool:
    """Return True if targets (B, B) are one row, for each sample times a number and plus a number; on the CPU only.

    Cost: some passes over targets of the shape (B, B).
    """
    if targets is None or targets.device.type != "cpu" or not MIN_SAMPLES <= samples <= MAX_SAMPLES:
        return False
    values = targets.detach().double()
    return values.shape == (samples, samples) and (_are_row_plus_column(values) or _are_row_plus_column(values.t()))


def _are_row_plus_column(values: Any) -> bool:
    close, changes = TOLERANCE * values.abs().max(), values - values[:, :1]
    sizes = changes.abs().amax(1)
    row = changes[sizes.argmax()]
    rest = changes - (changes @ row)[:, None] * row / row.square().sum()
    differ, many = (values - values[:1]).abs().max() > 10 * close, len(row) / 2
    sparse = min(int((sizes > 10 * close).sum()), int((row.abs() > 10 * close).sum())) <= many
    return bool(rest.abs().max() <= close and differ) and not sparse


def _samples(output: Any) -> Iterator[int]:
    """Yield the number of samples of each tensor in an output: its first size."""
    tensor: type[Any] = sys.modules["torch"].Tensor  # an import statement would take longer than all the rest
    parts: Any = (output,)
    if isinstance(output, tuple | list):
        parts = cast("tuple[Any, ...]", output)
    elif not isinstance(output, tensor) and isinstance(output, Mapping):
        parts = cast("Mapping[Any, Any]", output).values()
    for part in parts:
        if isinstance(part, tensor) and part.dim():
            yield part.shape[0]


BAD = """
import warnings
import torch
from torch import nn

warnings.filterwarnings("ignore")
torch.manual_seed(0)
inputs = torch.randn(200, 6)
targets = inputs @ torch.randn(6)
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(20):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.3f}")
"""

FAILURE = Failure(
    code="LOS003",
    title="Predictions and targets are broadcast against each other",
    severity=Severity.ERROR,
    bad=BAD,
    good=changed(
        BAD,
        {
            "import warnings\n": "",
            'warnings.filterwarnings("ignore")\n': "",
            "loss = nn.functional.mse_loss(model(inputs), targets)": (
                "loss = nn.functional.mse_loss(model(inputs).squeeze(1), targets)"
            ),
        },
    ),
    fix="Give predictions and targets the same shape.",
    detector=Detector,
)
