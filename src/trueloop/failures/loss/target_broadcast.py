"""Every prediction is compared with every target: (B, 1) against (B,).

What you see
    A regression learns to predict the mean of the targets and stays there, at a loss equal to their variance. The
    output of ``Linear(n, 1)`` is (B, 1), the targets of the loader are (B,), and the loss is over B x B pairs.

Why it happens
    Shapes that differ are broadcast. torch warns ("Using a target size that is different to the input size"), once,
    and many programs filter warnings.

Fix
    Give both the same shape: ``predictions.squeeze(1)`` or ``targets.unsqueeze(1)``.

When this is fine
    Pairs on purpose, as in quantile regression or contrastive losses: an axis added just before, or an axis on both
    sides; ``expand`` on one side; a prediction for the whole batch, (1,) against (B,); targets of one column against
    predictions of one column. Reported is only (B, 1) against (B,), either way round, where a model was just called
    for B samples, and both sides were expanded to B x B; and one of them against targets of B x B whose values prove
    that they were made of (B, 1) and (B,) before, as ``rewards + gamma * next_q.max(1)[0]`` is.

References
    torch.nn.MSELoss, https://docs.pytorch.org/docs/stable/generated/torch.nn.MSELoss.html
    Broadcasting semantics, https://docs.pytorch.org/docs/stable/notes/broadcasting.html
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Final, cast

from trueloop.core.findings import Evidence
from trueloop.failures import failure
from trueloop.failures.failure import Failure, Severity
from trueloop.tracing.events import Event, LossesSeen, ModelCalled

FEWEST: Final = 8  # samples, for the targets' values to prove anything
LARGEST: Final = 1024  # more would take longer than 20 ms to look at
CLOSE: Final = 1e-4  # of the largest target: rounding


class Detector(failure.Detector):
    """Looks for losses over all pairs of as many samples as a model was called for."""

    subscribes_to: ClassVar[tuple[type[Event], ...]] = (ModelCalled, LossesSeen)

    def __init__(self) -> None:
        self._samples: deque[int] = deque(maxlen=16)
        self._looked = False
        self._unread = ""

    def observe(self, event: ModelCalled | LossesSeen) -> Iterator[Evidence]:
        """Return evidence for each loss over all pairs."""
        if isinstance(event, ModelCalled):
            self._samples.extend(_samples(event.output))
            return
        for loss in event.losses:
            self._looked = True
            if loss.broadcast is None:
                if loss.kind == "l1" and loss.place is None:  # by hand: only its differences tell
                    self._unread = loss.unread
                continue
            prediction, target = loss.broadcast
            samples = prediction[0] if prediction else 0
            alone = {(samples, 1), (samples,)}
            before = prediction in alone and target == (samples, samples) and _of_a_row(loss.targets, samples)
            if samples < 2 or samples not in self._samples or not (before or {prediction, target} == alone):
                continue
            last = "predictions" if len(prediction) == 2 else "targets"
            yield Evidence(
                message=f"Predictions {_shape(prediction)} and targets {_shape(target)} are broadcast against each "
                f"other: the loss is over {samples * samples} pairs in place of {samples} samples.",
                location=loss.place or event.place,
                related=((event.place, "its backward"),) if loss.place and event.place else (),
                fix=f"The targets were made of ({samples}, 1) and ({samples},): give these one shape."
                if before
                else f"Give both the same shape: squeeze the {last}' last axis.",
                about=loss.kind,
            )

    def inconclusive(self) -> str:
        """Say so where no loss of torch's own was seen."""
        return self._unread or ("" if self._looked else "no loss of torch's own was found in a graph")


def _shape(shape: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def _of_a_row(targets: Any, samples: int) -> bool:
    """Return True where targets are a row for all samples, times a number and plus a number of each; on the CPU only.

    Cost: some passes over them, where the shapes are those of pairs only.
    """
    if targets is None or targets.device.type != "cpu" or not FEWEST <= samples <= LARGEST:
        return False
    values = targets.detach().double()
    return values.shape == (samples, samples) and (_proven(values) or _proven(values.t()))


def _proven(values: Any) -> bool:
    close, changes = CLOSE * values.abs().max(), values - values[:, :1]
    sizes = changes.abs().amax(1)
    row = changes[sizes.argmax()]
    rest = changes - (changes @ row)[:, None] * row / row.square().sum()
    differ, many = (values - values[:1]).abs().max() > 10 * close, len(row) / 2
    seldom = min(int((sizes > 10 * close).sum()), int((row.abs() > 10 * close).sum())) <= many
    return bool(rest.abs().max() <= close and differ) and not seldom


def _samples(output: Any) -> Iterator[int]:
    """How many samples the tensors of an output are for: their first sizes."""
    tensor: type[Any] = sys.modules["torch"].Tensor  # an import statement would take longer than all the rest
    parts: Any = (output,)
    if isinstance(output, tuple | list):
        parts = cast("tuple[Any, ...]", output)
    elif not isinstance(output, tensor) and isinstance(output, Mapping):
        parts = cast("Mapping[Any, Any]", output).values()
    for part in parts:
        if isinstance(part, tensor) and part.dim():
            yield part.shape[0]


FAILURE = Failure(
    code="LOS003",
    title="Predictions and targets are broadcast against each other",
    severity=Severity.ERROR,
    doc=__doc__ or "",
    bad="""
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
""",
    good="""
import torch
from torch import nn

torch.manual_seed(0)
inputs = torch.randn(200, 6)
targets = inputs @ torch.randn(6)
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(20):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(inputs).squeeze(1), targets)
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.3f}")
""",
    fix="Give predictions and targets the same shape.",
    detector=Detector,
)
