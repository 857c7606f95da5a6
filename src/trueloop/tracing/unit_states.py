"""Reads which units of a model are dead or saturated, from the graph of a loss."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from torch import Tensor

from trueloop.tracing.events import GraphNode, Ref

SATURATED: Final = 0.99  # of the largest value of a sigmoid (from -1 to 1) or tanh
MAX_LAYERS: Final = 256  # whose units are kept
LATEST_READS: Final = 4  # in each of which a dead unit gives 0 for all samples
MAX_STEPS: Final = 8  # operations from an activation back to the layer whose values it gets


class ActivationState(NamedTuple):
    """The values of one activation in one batch."""

    operation: str
    """The activation: "Relu", "Sigmoid", "Tanh"."""
    share: float
    """Share of the values that are 0 for all samples (ReLU), or that are saturated."""


@dataclass(slots=True)
class _Units:
    operation: str
    silent: deque[Tensor] = field(default_factory=lambda: deque[Tensor](maxlen=LATEST_READS))
    """For each unit of a ReLU, whether it gave 0 for all samples of a batch."""
    saturated: float = 0.0


class UnitStates:
    """The activations of a model; those of a GPU are not read.

    Cost: one pass over the activations of each graph whose layers are read.
    """

    def __init__(self) -> None:
        self.latest: list[ActivationState] = []
        """The activations of the latest graph, last one first."""
        self._layers: dict[Ref, _Units] = {}
        """Parameter of the layer before an activation -> the units of that activation."""

    def read(self, nodes: Sequence[GraphNode]) -> None:
        """Read the activations of a graph."""
        self.latest = []
        for node in nodes:
            values = node.values
            if values is None or node.operation not in ("Relu", "Sigmoid", "Tanh") or values.dim() < 2:
                continue
            parameter, is_convolution = _layer_before(nodes, node)
            units = None
            if parameter is not None and (parameter in self._layers or len(self._layers) < MAX_LAYERS):
                units = self._layers.setdefault(parameter, _Units(node.operation))
            if node.operation == "Relu":
                silent = (values == 0).all(0)
                share = silent.count_nonzero().tolist() / max(1, silent.numel())
                if units is not None:
                    units.silent.append(_by_channel(silent, first=is_convolution))
            else:
                centred = 2 * values - 1 if node.operation == "Sigmoid" else values
                share = (centred.abs() > SATURATED).double().mean().item()
                if units is not None:
                    units.saturated = share
            self.latest.append(ActivationState(node.operation, share))

    def shares(self) -> Iterator[tuple[Ref, str, float]]:
        """Yield a parameter of each layer with an activation, the activation, and its share of dead units."""
        for parameter, units in self._layers.items():
            share, reads = units.saturated, [each for each in units.silent if each.shape == units.silent[-1].shape]
            if reads:
                dead = reads[0]
                for each in reads[1:]:
                    dead = dead & each
                share = dead.double().mean().item()
            yield parameter, units.operation, share


def _by_channel(silent: Tensor, *, first: bool) -> Tensor:
    """Return whether each channel is silent at all positions; the channels come first after a convolution."""
    if silent.dim() < 2:
        return silent
    return silent.flatten(1).all(1) if first else silent.flatten(0, -2).all(0)


def _layer_before(nodes: Sequence[GraphNode], node: GraphNode) -> tuple[Ref | None, bool]:
    """Return a parameter of the layer whose values an activation gets, and whether that is a convolution."""
    is_convolution = False
    for _ in range(MAX_STEPS):
        parents = [nodes[each] for each in node.parents if each is not None]
        if not parents:
            break
        node = parents[0]
        is_convolution |= "Conv" in node.operation or "BatchNorm" in node.operation
        own = [nodes[each] for each in node.parents if each is not None]
        transposed = [
            nodes[each] for parent in own if parent.operation == "T" for each in parent.parents if each is not None
        ]
        parameter = next((leaf.parameter for leaf in (*own, *transposed) if leaf.parameter is not None), None)
        if parameter is not None:
            return parameter, is_convolution
    return None, False
