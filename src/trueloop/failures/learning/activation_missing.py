"""Linear layers follow each other without an activation, so the whole model is one linear layer.

What you see
    The loss stays far above what the data allow, and no deeper or wider model helps. A task like XOR stays at the loss
    of a guess.

Why it happens
    A linear function of a linear function is linear. Without ReLU or another activation between the layers, two layers
    compute what a single one can, and PyTorch runs them without complaint.

Fix
    Put an activation between the layers.

        nn.Sequential(nn.Linear(2, 24), nn.ReLU(), nn.Linear(24, 1))

When this is fine
    - A linear model is enough: its loss is below that of a constant prediction.
    - A layer is narrower than the inputs and the outputs of the model, as in LoRA and linear autoencoders.
    - Another part of the model is not linear.

How it is detected
    In a run, the sanitizer reads the operations between the data and the loss. It reports a model of two or more linear
    layers or convolutions without any other operation between them, if the loss of 30 or more updates did not fall
    clearly below that of the best constant prediction.

References
    Goodfellow, Bengio, Courville, 2016, "Deep Learning", section 6.1, https://www.deeplearningbook.org/contents/mlp.html
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from trueloop.core.findings import CodePosition, Evidence
from trueloop.failures.failure import BaseDetector, Failure, Severity, changed
from trueloop.failures.teaching_script import Piece, TeachingLoop
from trueloop.tracing.events import GraphNode, LossGraphRead, WatchEnded

if TYPE_CHECKING:
    from trueloop.tracing.trackers.learning_progress import LearningProgress

# Operations of the autograd graph, without "Backward0".
LAYERS = ("Addmm", "Mm", "Convolution")
VIEWS = ("T", "Transpose", "Permute", "View", "UnsafeView", "Reshape", "ReshapeAlias", "Squeeze", "Unsqueeze", "Clone")
LINEAR = {*LAYERS, *VIEWS, "leaf", "Alias", "Select", "Slice", "NativeDropout", "NativeBatchNorm"}
MIN_READ = 4  # graphs
MAX_READ = 16


class Detector(BaseDetector):
    """Reads the operations of the model."""

    progress: LearningProgress

    def __init__(self) -> None:
        self._layers: deque[int] = deque(maxlen=MAX_READ)
        """Number of layers of each graph that was read; 0 = it is not a chain of linear layers."""
        self._location: CodePosition | None = None
        self._called_at: CodePosition | None = None

    def on_loss_graph_read(self, event: LossGraphRead) -> None:
        """Count the layers of a linear graph."""
        if event.live_nodes:
            answers = event.live_losses[0].answers
            self._layers.append(_linear_layers(event.live_nodes, answers.shape[1] if answers.dim() > 1 else 1))
            self._location, self._called_at = _first_layer(event.live_nodes), event.location

    def on_watch_ended(self, event: WatchEnded) -> Evidence | None:
        """Return evidence if the run does not learn."""
        layers = min(self._layers, default=0)
        if layers < 2 or len(self._layers) < MIN_READ or (failure := self.progress.failure()) is None:
            return None
        self.progress.cause_reported = True
        return Evidence(
            message=f"There is no activation between the {layers} linear layers of the model, which can do no more "
            f"than a single one. The run does not learn: {failure.losses}.",
            location=self._location or self._called_at,
            related=((self._called_at, "trained here"),) if self._location and self._called_at else (),
            first_update=0,
        )

    def inconclusive(self) -> str:
        """Return the reason if it is not known whether the run learns."""
        return self.progress.unknown()


def _linear_layers(nodes: Sequence[GraphNode], outputs: int) -> int:
    """Return the number of layers of a graph; 0 if something between them is not linear, or a layer is narrow.

    Args:
        nodes: the graph, from the output backward.
        outputs: number of values that the last layer gives for one sample.
    """
    layers = [index for index, node in enumerate(nodes) if node.operation in LAYERS]
    if len(layers) < 2 or any(node.operation not in LINEAR for node in nodes[layers[0] :]):
        return 0
    *hidden, inputs = [0 if (values := nodes[index].values) is None else values.shape[1] for index in layers]
    return 0 if min(hidden) <= min(inputs, outputs) else len(layers)


def _first_layer(nodes: Sequence[GraphNode]) -> CodePosition | None:
    """Return the line that created the first layer of a graph."""
    parameters = [node.parameter for node in nodes if node.parameter is not None]
    return next((ref.registered_at[0] for ref in reversed(parameters) if ref.registered_at), None)


def inject(loop: TeachingLoop) -> None:
    """Inject this failure into the teaching loop."""
    loop.require(bool(loop.settings["hidden"]), "There is no hidden layer.", hidden=(16,))
    loop.require(
        loop.settings["dataset"] in ("circles", "xor"), "A line separates most of these points.", dataset="circles"
    )
    loop.require(not loop.settings["dropout"], "A CPU drops neurons by a product, which is not linear.", dropout=0.0)
    for name in ("ReLU", "Tanh", "Sigmoid", "GELU"):
        if f"self.activation = nn.{name}()" in loop.pieces[Piece.MODEL]:
            loop.replace(Piece.MODEL, f"self.activation = nn.{name}()", "self.activation = nn.Identity()")
            return
    loop.require(holds=False, reason="The model has no activation.", activation="relu")


BAD = """
import torch
from torch import nn

torch.manual_seed(0)
x = 2 * torch.rand(512, 2) - 1
y = (x[:, :1] * x[:, 1:] > 0).float()
model = nn.Sequential(nn.Linear(2, 32), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
for step in range(200):
    rows = torch.randint(512, (64,))
    optimizer.zero_grad()
    loss = nn.functional.binary_cross_entropy_with_logits(model(x[rows]), y[rows])
    loss.backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="LRN004",
    title="Linear layers without an activation between them",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"nn.Linear(2, 32), nn": "nn.Linear(2, 32), nn.ReLU(), nn"}),
    fix="Put an activation such as nn.ReLU() between the layers.",
    detector=Detector,
    inject=inject,
)
