"""The inputs of the first layer are far from unit scale, and the run does not learn.

What you see
    The loss starts in the thousands or millions, falls for a while, and stays above that of a model that always
    predicts the mean. Smaller learning rates make it slower, larger ones make it diverge. Or the loss stays at that of
    the most frequent class from the first update on: the inputs were divided by 255 twice.

Why it happens
    Initial weights and the default learning rates suit inputs with a mean near 0 and a standard deviation near 1. With
    pixels from 0 to 255 or an income in euros, the first outputs are hundreds of times too large, and each update is
    either too large for the large columns or too small for the others. With inputs of a thousandth, the outputs hardly
    depend on them. PyTorch accepts every scale.

Fix
    Subtract the mean and divide by the standard deviation of each column of the training set.

        mean, std = x_train.mean(0), x_train.std(0)
        x_train, x_test = (x_train - mean) / std, (x_test - mean) / std

    Divide images by 255, or put a normalisation layer first.

When this is fine
    - The loss falls in spite of the scale.
    - A normalisation layer is in the model, or the inputs are counts, indices, one-hot columns or rare words.

How it is detected
    In a run, the sanitizer computes the root mean square of each column (or channel) of the data that linear layers and
    convolutions get. It reports a largest value of 30 or more, or one below 0.02 in rows that are shorter than 0.3, if
    the loss of 30 or more updates did not fall clearly below that of the best constant prediction. Models with a
    normalisation layer and data on a GPU are not judged.

References
    LeCun et al., 1998, "Efficient BackProp", section 4.3, http://yann.lecun.com/exdb/publis/pdf/lecun-98b.pdf
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trueloop.core.findings import CodePosition, Evidence
from trueloop.core.formatting import format_float
from trueloop.failures.failure import BaseDetector, Failure, Severity, changed
from trueloop.failures.teaching_script import Piece, TeachingLoop
from trueloop.tracing.events import GraphNode, LossGraphRead, WatchEnded

if TYPE_CHECKING:
    from trueloop.tracing.trackers.learning_progress import LearningProgress

LAYERS = {"Addmm": 1, "Mm": 0, "Convolution": 0}
"""Operation of a layer -> number of its input."""
MAX_SCALE = 30.0  # root mean square; standardised data have 1, and pixels of 0 to 255 about 130
MIN_SCALE = 0.02
MIN_LENGTH = 0.3  # of a row; columns of rare words are small, their rows are not
MIN_ROWS = 16


class _Columns:
    """Sums of squares of the columns of one layer's input."""

    def __init__(self) -> None:
        self.rows = 0
        self.squares: Any = 0.0

    def add(self, values: Any) -> None:
        rows = values.detach().double().movedim(1, -1).reshape(-1, values.shape[1])
        self.rows += len(rows)
        self.squares = self.squares + rows.square().sum(0)

    def scales(self) -> Sequence[float]:
        """Return the root mean square of each column that is not always 0, smallest first."""
        return sorted(scale for scale in (self.squares / self.rows).sqrt().tolist() if scale > 0)


class Detector(BaseDetector):
    """Measures the data that the first layers of a model get."""

    progress: LearningProgress

    def __init__(self) -> None:
        self._columns: dict[tuple[str, int], _Columns] = {}
        self._normalised = False
        self._location: CodePosition | None = None

    def on_loss_graph_read(self, event: LossGraphRead) -> None:
        """Add up the columns of the data."""
        self._normalised |= any("Norm" in node.operation for node in event.live_nodes)
        for node in event.live_nodes:
            if _gets_data(node) and not self._normalised:
                self._location = event.location
                self._columns.setdefault((node.operation, node.values.shape[1]), _Columns()).add(node.values)

    def on_watch_ended(self, event: WatchEnded) -> Evidence | None:
        """Return evidence if the run does not learn."""
        failure = None if self._normalised or not self._columns else self.progress.failure()
        if failure is None:
            return None
        inputs = [each.scales() for each in self._columns.values() if each.rows >= MIN_ROWS]
        largest = max((scales for scales in inputs if scales), key=lambda scales: scales[-1], default=[0.0])
        is_small = 0 < largest[-1] < MIN_SCALE and sum(each**2 for each in largest) < MIN_LENGTH**2
        if largest[-1] < MAX_SCALE and not is_small:
            return None
        smallest = f", the smallest {format_float(largest[0])}" if len(largest) > 1 else ""
        self.progress.cause_reported = True
        return Evidence(
            message="The data that the first layer gets are not scaled: the root mean square of the largest column is "
            f"{format_float(largest[-1])}{smallest}; usual is about 1. The run does not learn: {failure.losses}.",
            location=self._location,
            first_update=0,
        )

    def inconclusive(self) -> str:
        """Return the reason if it is not known whether the run learns."""
        return "a normalisation layer scales the activations" if self._normalised else self.progress.unknown()


def _gets_data(node: GraphNode) -> bool:
    values = node.values
    if node.operation not in LAYERS or values is None or node.parents[LAYERS[node.operation]] is not None:
        return False
    return values.dim() > 1 and values.is_floating_point() and bool(values.numel())


def inject(loop: TeachingLoop) -> None:
    """Inject this failure into the teaching loop."""
    loop.require(not loop.settings["batchnorm"], "BatchNorm scales the values itself.", batchnorm=False)
    loop.require(bool(loop.settings["hidden"]), "One layer can follow any scale.", hidden=(16,))
    loop.require(loop.settings["activation"] == "relu", "Other activations bound the values.", activation="relu")
    head = "def forward(self, x):\n"
    loop.replace(Piece.MODEL, head, f"{head}        x = 1_000_000 * x  # in micrometres instead of metres\n")


BAD = """
import torch
from torch import nn

torch.manual_seed(0)
age, income = 20 + 50 * torch.rand(512, 1), 5e4 * torch.rand(512, 1)
x = torch.cat([age, income], 1)
y = (age - 45) / 15 + (income - 2.5e4) / 1.5e4
model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
for step in range(120):
    rows = torch.randint(512, (64,))
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x[rows]), y[rows])
    loss.backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="LRN001",
    title="Inputs are far from unit scale",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"y = (age": "x = (x - x.mean(0)) / x.std(0)\ny = (age"}),
    fix="Subtract the mean of each input column and divide by its standard deviation on the training set.",
    detector=Detector,
    inject=inject,
)
