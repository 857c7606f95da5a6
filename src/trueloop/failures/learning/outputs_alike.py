"""The model gives the same answer for every input, because units are dead or saturated, or gradients vanish.

What you see
    The loss stays at that of a model that always predicts the mean, or the most frequent class: 0.693 for two classes,
    2.303 for ten. The predictions for different inputs are equal to many digits.

Why it happens
    The signal is lost between input and output. A ReLU whose inputs are negative for all samples gives 0 and has no
    gradient; a sigmoid or tanh with large inputs gives a constant; in a deep stack of sigmoids both the signal and the
    gradient shrink with every layer. One update that is far too large, or too large inputs, suffice. Or the position
    that the model returns never sees the sample: without ``batch_first=True``, attention over (batch, time) compares
    the first tokens of all samples with each other, which are equal.

Fix
    Lower the learning rate, scale the inputs, and use ReLU, GELU or a normalisation layer between the layers.

        nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.ReLU(), ...)
        nn.TransformerEncoderLayer(64, 4, batch_first=True)

When this is fine
    - All inputs are equal, or the targets do not depend on them.
    - The last layer starts at zero and has had few updates.

How it is detected
    In a run, the sanitizer compares the answers of a model for the samples of a batch. It reports answers whose
    standard deviation is at most a thousandth of that of the targets (for class scores: at most 0.001) in each of the
    last four batches that it read, if the loss of 30 or more updates did not fall clearly below that of the best
    constant prediction. It names dead and saturated layers, vanishing gradients, and a repeated call with other values
    in half of the samples that changed no output, which suffices where dropout makes the answers differ. It does not
    read answers on a GPU.

References
    Lu et al., 2019, "Dying ReLU and Initialization: Theory and Numerical Examples", arXiv:1903.06733
    Glorot and Bengio, 2010, "Understanding the difficulty of training deep feedforward neural networks",
    https://proceedings.mlr.press/v9/glorot10a.html
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from trueloop.core.findings import CodePosition, Evidence
from trueloop.core.formatting import format_float, format_percent
from trueloop.failures.failure import BaseDetector, Failure, Severity, changed
from trueloop.failures.teaching_script import Piece, TeachingLoop
from trueloop.tracing.events import InformationFlowProbed, LossGraphRead, MeasuredLoss, WatchEnded

if TYPE_CHECKING:
    from torch import Tensor

    from trueloop.tracing.trackers.learning_progress import LearningProgress
    from trueloop.tracing.unit_states import ActivationState

ALIKE = 1e-3  # standard deviation of class scores, or of answers over that of the targets
MIN_SAMPLES = 4
MAX_SAMPLES = 64  # of a batch that are compared, evenly chosen
MAX_COLUMNS = 512  # of the answers that are compared first
BATCHES = 4  # latest batches that must agree
MIN_SHARE = 0.95  # of a layer's units that are dead or saturated
VANISHED = 1e-6  # gradient of the first weight over that of the last weight


class Detector(BaseDetector):
    """Compares the answers within the latest batches."""

    progress: LearningProgress

    def __init__(self) -> None:
        self._deviations: deque[float | None] = deque(maxlen=BATCHES)
        """Deviation of the answers of each of the latest batches; None = they differ."""
        self._cause = ""
        self._input_ignored = False
        self._location: CodePosition | None = None

    def on_loss_graph_read(self, event: LossGraphRead) -> None:
        """Compare the answers; only in updates in which the layers are read too."""
        for loss in event.live_losses if event.live_nodes else ():
            is_batch = loss.answers.is_cpu and loss.answers.dim() and len(loss.answers) >= MIN_SAMPLES
            if is_batch and loss.targets.dim() and bool((loss.targets[1:] != loss.targets[:1]).any()):
                self._location = event.location
                self._deviations.append(_deviation(loss))
                self._cause = _cause(self.progress.units.latest)

    def on_information_flow_probed(self, event: InformationFlowProbed) -> None:
        """Record whether the output depends on the input at all."""
        self._input_ignored = event.input_ignored

    def on_watch_ended(self, event: WatchEnded) -> Evidence | None:
        """Return evidence if the run does not learn."""
        deviations = [each for each in self._deviations if each is not None]
        is_alike = len(deviations) == BATCHES
        if not (is_alike or self._input_ignored) or (failure := self.progress.failure()) is None:
            return None
        changes = [each for each in self.progress.weight_changes().values() if each]
        ratio = min((each[-1].first_gradient for each in changes), default=1.0)
        cause = self._cause
        if self._input_ignored:
            cause = (
                "other values in half of the samples of a batch changed no output: the position that the model returns "
                "does not see them (attention without batch_first=True takes the batch for time), or all units are dead"
            )
        if not cause and ratio < VANISHED:
            cause = f"the gradient of the first layer is {format_float(ratio)} times that of the last layer"
        self.progress.cause_reported = True
        if is_alike:
            cause = f"the standard deviation over a batch is {format_float(deviations[-1])}{cause and ', and ' + cause}"
        return Evidence(
            message=f"The model gives the same answer for every input: {cause}. The run does not learn: "
            f"{failure.losses}.",
            location=self._location,
            fix="Pass batch_first=True to attention over (batch, time), or look for dead units."
            if self._input_ignored
            else "",
        )

    def inconclusive(self) -> str:
        """Return the reason if it is not known whether the run learns."""
        return self.progress.unknown()


def _rows(batch: Tensor) -> Tensor:
    return batch.reshape(len(batch), -1).double()


def _deviation(loss: MeasuredLoss) -> float | None:
    """Return the mean standard deviation of the answers over a batch if they are alike; None if they differ."""
    every = -(-len(loss.answers) // MAX_SAMPLES)
    is_scores, columns = loss.kind.startswith(("nll", "bce")), loss.answers[0].numel()
    if is_scores and columns > MAX_COLUMNS:
        part = _rows(loss.answers[::every, : -(-MAX_COLUMNS * loss.answers.shape[1] // columns)])
        if _spread(part) * part.shape[1] > ALIKE * columns:  # the mean of all columns is even larger than this share
            return None
    answers = _rows(loss.answers[::every])
    deviation = _spread(answers)
    if is_scores:
        return deviation if deviation <= ALIKE else None
    spread = _spread(_rows(loss.targets[::every]))
    size = max(answers.square().mean().sqrt().item(), ALIKE * spread)
    return deviation if deviation <= ALIKE * min(spread, size) else None


def _spread(rows: Tensor) -> float:
    """Return the mean standard deviation of the columns; a tenth of the time of Tensor.std(0)."""
    return (rows - rows.mean(0)).square().sum(0).div(len(rows) - 1).sqrt().mean().item()


def _cause(activations: Sequence[ActivationState]) -> str:
    """Return what is wrong with the activations of the worst layer, in words."""
    worst = next((each for each in activations if each.share >= MIN_SHARE), None)
    if worst is None:
        return ""
    is_relu = worst.operation == "Relu"
    problem = "ReLU is 0 for all samples" if is_relu else f"{worst.operation.lower()} is saturated"
    return f"for {format_percent(worst.share)} of the units of a layer the {problem}"


def inject(loop: TeachingLoop) -> None:
    """Inject this failure into the teaching loop."""
    loop.require(bool(loop.settings["hidden"]), "There is no hidden layer.", hidden=(16,))
    loop.require(loop.settings["activation"] == "relu", "Only a ReLU can be 0 for all points.", activation="relu")
    loop.require(not loop.settings["batchnorm"], "BatchNorm moves the bias back.", batchnorm=False)
    start = "nn.init.constant_(model.layers[-1].bias, -100.0)  # no point reaches the ReLU"
    loop.replace(Piece.MODEL, "model = Network()", f"model = Network()\n{start}")


BAD = """
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(512, 8)
y = (x[:, 0] > 0).long()
layers = [nn.Linear(8, 16)]
for _ in range(10):
    layers += [nn.Sigmoid(), nn.Linear(16, 16)]
model = nn.Sequential(*layers, nn.Sigmoid(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(200):
    rows = torch.randint(512, (64,))
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
    loss.backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="LRN005",
    title="Model gives the same answer for every input",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"range(10)": "range(1)", "nn.Sigmoid(), nn.Linear(16, 16)": "nn.ReLU(), nn.Linear(16, 16)"}),
    fix="Lower the learning rate, scale the inputs, or use ReLU and normalisation layers.",
    detector=Detector,
    inject=inject,
)
