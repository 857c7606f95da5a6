"""Predictions (B, 1) and targets (B,) are broadcast, so every prediction is compared with every target.

What you see
    A regression model learns to predict the mean of the targets for every input. The loss stays at their variance.

Why it happens
    The output of ``Linear(n, 1)`` has the shape (B, 1), but the targets of the loader have the shape (B,). PyTorch
    broadcasts both to (B, B), so the loss is over B x B pairs. PyTorch warns ("Using a target size that is different to
    the input size"), and many programs hide warnings.

Fix
    Give both the same shape, with ``squeeze`` or ``unsqueeze``.

        mse_loss(predictions, targets)  # wrong: (B, 1) and (B,)
        mse_loss(predictions.squeeze(1), targets)  # right

When this is fine
    - You compare all pairs on purpose, as in quantile regression or contrastive losses, and add a dimension for it.
    - You call ``expand`` on one of the two, or compare one prediction (1,) with all targets (B,).
    - Predictions and targets both have one column.
    - The update is for one action that was just sampled, so nothing is broadcast.

How it is detected
    In a run, the sanitizer reports a loss over the shapes (B, 1) and (B,), in either order, if a model was just called
    with B samples, or B times with one. It also reports a loss over one of these shapes and targets of shape (B, B)
    whose values show that they were broadcast before, as in ``rewards + gamma * next_q.max(1)[0]``. The second check
    needs targets on the CPU. In a loss that is written by hand, a difference or product of the shapes (B, 1) and (B,),
    of which one has no graph, is a warning from the third backward pass on.

    The linter finds the shapes in the source: of the output of the last ``Linear``, and of targets from NumPy's random
    numbers, data sets of scikit-learn, tables of pandas, a ``TensorDataset`` or a data set of the program, through
    functions, generators, iterable classes, ``next``, lambdas, indices and operations. In a loss that is written by
    hand it reports a difference or product of both shapes whose mean, sum or norm is taken, such as the ratio of PPO,
    from ``Categorical.log_prob`` of a batch of actions (B,), times advantages (B, 1) from the values of a critic, or a
    ``pairwise_distance`` (B,) and labels (B, 1).

References
    torch.nn.MSELoss, https://docs.pytorch.org/docs/stable/generated/torch.nn.MSELoss.html
    Broadcasting semantics, https://docs.pytorch.org/docs/stable/notes/broadcasting.html
"""

import sys
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

from trueloop.core.findings import Evidence
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.failures.loss.target_broadcast.losses_in_source import find
from trueloop.tracing.events import BackwardLosses, ModelCalled

MIN_PAIRS: Final = 3  # backward passes; the number of prototypes, say, may by chance be the number of samples
MIN_SAMPLES: Final = 8  # fewer targets prove nothing
MAX_SAMPLES: Final = 1024  # checking more would take longer than 20 ms
TOLERANCE: Final = 1e-4  # for rounding; relative to the largest target


class Detector(BaseDetector):
    """Finds losses over all pairs of samples of a model's latest batch."""

    def __init__(self) -> None:
        self._samples: deque[int] = deque(maxlen=16)
        self._steps = 0
        """Number of calls with single samples since the latest backward pass, such as the steps of an episode."""
        self._pairs = 0
        """Number of hand-written losses over pairs."""
        self._checked = False
        self._unreadable_reason = ""

    def on_model_called(self, event: ModelCalled) -> None:
        """Record the call of the model."""
        samples = list(_samples(event.output))
        self._samples.extend(samples)
        self._steps += all(each == 1 for each in samples)

    def on_backward_losses(self, event: BackwardLosses) -> Iterator[Evidence]:
        """Return evidence for each loss over all pairs."""
        steps, self._steps = self._steps, 0
        for loss in event.losses:
            self._checked = True
            if loss.broadcast is None:
                if loss.kind == "l1" and loss.location is None:  # a loss that is written by hand
                    self._unreadable_reason = loss.unreadable_reason
                continue
            prediction, target = loss.broadcast
            samples = prediction[0] if prediction else 0
            size = min(prediction, target, key=len)[1:]  # of one sample: () for a number, (H, W) for an image
            per_sample = {(samples, 1, *size), (samples, *size)}
            broadcast_before = (
                prediction in per_sample and target == (samples, samples) and _are_broadcast(loss.targets, samples)
            )
            if (
                samples < 2
                or samples not in (*self._samples, steps)
                or not (broadcast_before or {prediction, target} == per_sample)
            ):
                continue
            by_hand = loss.kind == "pairs"
            self._pairs += by_hand
            if by_hand and self._pairs != MIN_PAIRS:
                continue
            has_column = "predictions" if prediction == (samples, 1, *size) else "targets"
            yield Evidence(
                severity=Severity.WARNING if by_hand else None,
                message=f"Predictions {_shape(prediction)} and targets {_shape(target)} are broadcast against each "
                f"other: the loss is over {samples * samples} pairs instead of {samples} samples.",
                location=loss.location or event.location,
                related=((event.location, "`backward()`"),) if loss.location and event.location else (),
                fix=f"The targets were computed from ({samples}, 1) and ({samples},): give these the same shape."
                if broadcast_before
                else f"Give both the same shape: call squeeze(1) on the {has_column}.",
                dedup_key=loss.kind,
            )

    def inconclusive(self) -> str:
        """Return a reason if no PyTorch loss was found."""
        return self._unreadable_reason or ("" if self._checked else "no PyTorch loss was found in a graph")


def _shape(shape: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def _are_broadcast(targets: Any, samples: int) -> bool:
    """Return True if each row of targets (B, B) is one common row times a number plus a number; on the CPU only.

    Cost: some passes over targets of the shape (B, B).
    """
    if targets is None or targets.device.type != "cpu" or not MIN_SAMPLES <= samples <= MAX_SAMPLES:
        return False
    values = targets.detach().double()
    return values.shape == (samples, samples) and (_are_row_plus_column(values) or _are_row_plus_column(values.t()))


def _are_row_plus_column(values: Any) -> bool:
    tolerance, changes = TOLERANCE * values.abs().max(), values - values[:, :1]
    sizes = changes.abs().amax(1)
    row = changes[sizes.argmax()]
    residual = changes - (changes @ row)[:, None] * row / row.square().sum()
    rows_differ = (values - values[:1]).abs().max() > 10 * tolerance
    nonzero = min(int((sizes > 10 * tolerance).sum()), int((row.abs() > 10 * tolerance).sum()))
    return bool(residual.abs().max() <= tolerance and rows_differ) and nonzero > len(row) / 2


def _samples(output: Any) -> Iterator[int]:
    """Yield the number of samples (the first size) of each tensor in an output."""
    # an import statement would be slower than the rest of this function
    tensor: type[Any] = sys.modules["torch"].Tensor
    parts: Any = (output,)
    if isinstance(output, tuple | list):
        parts = cast("tuple[Any, ...]", output)
    elif not isinstance(output, tensor) and isinstance(output, Mapping):
        parts = cast("Mapping[Any, Any]", output).values()
    for part in parts:
        if isinstance(part, tensor) and part.dim():
            yield part.shape[0]


RULE = Rule(
    required_words=(
        "oss|cost|err|objective",
        "Linear|gather(|\"none\"|'none'",
        ".backward(",
        "mean(|sum(|norm(|_loss|Loss(",
    ),
    find=find,
)

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
    rule=RULE,
    detector=Detector,
)
