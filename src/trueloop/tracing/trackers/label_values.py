"""Reads whether all labels that the classification losses of a run get are one and the same."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor

from trueloop.core.findings import CodePosition
from trueloop.tracing.events import (
    BackwardEnded,
    GraphNode,
    LossEvaluated,
    LossGraphRead,
    MeasuredLoss,
    Ref,
    StepTaken,
)
from trueloop.tracing.losses import RESHAPES
from trueloop.tracing.tracker import Tracker

MAX_NUMBERS: Final = 1 << 20  # of one target that are read
MAX_PLACES: Final = 16  # losses that are distinguished
MAX_PARAMETERS: Final = 64  # of last layers
_LAYERS: Final = frozenset(("Addmm", "Mm", "Convolution"))
_ABOVE_LAYER: Final = RESHAPES | {
    "Index", "IndexSelect", "LogSoftmax", "MaskedSelect", "Select", "Sigmoid", "Slice", "Softmax", "UpsampleBilinear2D",
    "UpsampleNearest2D", "UpsampleTrilinear3D",
}  # fmt: skip
"""Operations between the last layer and a loss."""


@dataclass(slots=True)
class Labels:
    """The labels of all losses of one kind, also of evaluations."""

    extremes: Tensor | None = None
    """Smallest and largest label, on the device of the labels; None = none was read."""
    varies: bool = False
    """Whether two labels certainly differ, or one of the losses is subtracted."""
    is_of_layers: bool = True
    """Whether all answers come from a linear layer or convolution with trainable weights."""
    updates: int = 0
    """Updates in which labels were read."""
    numbers: int = 0
    """Number of labels."""
    dimensions: int = 0
    classes: int = 0
    places: dict[tuple[CodePosition | None, int], None] = field(
        default_factory=dict[tuple[CodePosition | None, int], None]
    )
    """Line of the backward pass and number of the loss in it."""
    latest_update: int = -1
    in_window: int = 0
    """Losses since the latest step."""
    paired_steps: int = 0
    """Steps of the optimizer of the last layer for which there were two losses or more."""

    def value(self) -> float | None:
        """Return the label that all targets have, which synchronises a GPU; None if they differ or none was read."""
        if self.varies or self.extremes is None:
            return None
        low, high = self.extremes.tolist()
        return low if low == high else None

    def add(self, targets: Tensor) -> None:
        """Read the labels of one loss, without a synchronisation."""
        if self.varies:
            return
        found = torch.stack(torch.aminmax(targets.detach().reshape(-1)[:MAX_NUMBERS])).double()
        before = self.extremes
        if before is not None and before.device != found.device:
            self.varies = True
            return
        if before is not None:
            found = torch.stack((torch.minimum(before[0], found[0]), torch.maximum(before[1], found[1])))
        self.extremes = found
        self.varies = found.is_cpu and bool(found[0] != found[1])


class LabelValues(Tracker):
    """The labels of the cross-entropies ("nll") and of the binary cross-entropies ("bce") of a run.

    Cost: 10 us for each loss, until two labels differ.
    """

    def __init__(self) -> None:
        self.classes, self.binary = Labels(), Labels()
        self._waiting: set[Ref] = set()
        """Parameters of last layers that no optimizer has stepped yet."""
        self._stepped: set[Ref] = set()
        self.optimizers: set[Ref] = set()
        """Some of the optimizers that have stepped."""

    @property
    def last_layers_are_trained(self) -> bool:
        """Whether optimizers step the parameters of all layers that give the answers."""
        return bool(self._stepped) and not self._waiting

    def on_loss_graph_read(self, event: LossGraphRead) -> None:
        """Read the labels, and now and then the last layers."""
        for loss in event.live_losses:
            labels = self._labels(loss)
            if labels is None or labels.varies:
                continue
            labels.add(loss.targets)
            labels.updates += event.update != labels.latest_update
            labels.latest_update, labels.in_window = event.update, labels.in_window + 1
            labels.numbers += loss.targets.numel()
            labels.dimensions = loss.targets.dim()
            labels.classes = loss.answers.shape[1] if loss.answers.dim() > 1 else 1
            if len(labels.places) < MAX_PLACES:
                labels.places[event.location, loss.position] = None
            if event.live_nodes:
                self._read_layers(labels, event.live_nodes, len(event.live_losses))

    def on_backward_ended(self, event: BackwardEnded) -> None:
        """Count a loss that is subtracted as one with another label."""
        for loss in event.losses:
            if loss.gradient_weight is not None and loss.gradient_weight < 0:
                self.classes.varies |= loss.kind in ("nll", "cross_entropy")
                self.binary.varies |= loss.kind.startswith("bce")

    def on_loss_evaluated(self, event: LossEvaluated) -> None:
        """Read the labels of an evaluation."""
        labels = self._labels(event.live_loss)
        if labels is not None:
            labels.add(event.live_loss.targets)

    def on_step_taken(self, event: StepTaken) -> None:
        """Record whether the last layers are trained."""
        if self.classes.varies and self.binary.varies:
            return
        if len(self.optimizers) < MAX_PLACES:
            self.optimizers.add(event.optimizer)
        found = {each for each in self._waiting if each in event.with_gradient}
        self._waiting -= found
        self._stepped |= found
        is_of_layers = any(each in event.parameters for each in self._stepped)
        for labels in (self.classes, self.binary):
            labels.paired_steps += is_of_layers and labels.in_window > 1
            labels.in_window = 0

    def _labels(self, loss: MeasuredLoss) -> Labels | None:
        if not loss.targets.numel() or loss.targets.is_complex():
            return None
        return self.classes if loss.kind == "nll" else self.binary if loss.kind.startswith("bce") else None

    def _read_layers(self, labels: Labels, nodes: Sequence[GraphNode], losses: int) -> None:
        """Record the parameters of the layers that give the answers of all losses of one backward pass."""
        for number in range(min(losses, len(nodes))):
            parameters = _last_layer(nodes, number)
            labels.is_of_layers &= bool(parameters)
            if len(self._waiting) + len(self._stepped) < MAX_PARAMETERS:
                self._waiting.update(each for each in parameters if each not in self._stepped)


def _last_layer(nodes: Sequence[GraphNode], number: int | None) -> list[Ref]:
    """Return the parameters of the layer that gives the answers of a loss; [] if it is no layer."""
    while number is not None and nodes[number].operation in _ABOVE_LAYER:
        number = next((each for each in nodes[number].parents if each is not None), None)
    if number is None or nodes[number].operation not in _LAYERS:
        return []
    return list(_leaves(nodes, nodes[number].parents))


def _leaves(nodes: Sequence[GraphNode], parents: Iterable[Any]) -> Iterable[Ref]:
    """Yield the parameters among some nodes, also behind a transposition."""
    for each in parents:
        number = each
        while number is not None and nodes[number].operation in RESHAPES:
            number = next((parent for parent in nodes[number].parents if parent is not None), None)
        if number is not None and (ref := nodes[number].parameter) is not None:
            yield ref
