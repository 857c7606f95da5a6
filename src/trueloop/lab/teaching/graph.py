"""Read the autograd graph of a tensor: its nodes, their saved tensors, and their positions in the picture.

The graph is read from ``grad_fn`` and ``next_functions``; nothing is executed and no reference is kept. After a
backward pass through a node, its saved tensors are freed.
"""
# ruff: noqa: RUF001 - formulas use × and −

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from torch import Tensor

from trueloop.autograd.backward_graph import node_positions, saved_values, walk

MAX_NODES: Final = 200  # a larger picture is unreadable

DESCRIPTIONS: Final = {
    "AccumulateGrad": "adds the incoming gradient to {of}.grad",
    "AddmmBackward0": "inputs × weightᵀ + bias: backward needs the inputs for the weight's gradient, and the weight "
    "for the inputs' gradient",
    "TBackward0": "the transposed weight: backward needs no saved tensor",
    "ReluBackward0": "max(0, x): backward passes the gradient on where the result was above 0",
    "MseLossBackward0": "the mean of the squared differences",
    "LogSoftmaxBackward0": "the logarithms of the softmax probabilities",
    "NllLossBackward0": "the mean of −log p(right class) over the batch",
}
"""PyTorch's name of an operation -> what it does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedTensor:
    """A tensor that a node saves for backward."""

    name: str
    """PyTorch's name for the saved tensor."""
    shape: tuple[int, ...]
    size_b: int
    tensor_name: str
    """The program's name for the tensor; empty if it has none."""
    freed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One operation of the graph, or a leaf that accumulates gradients."""

    name: str
    leaf: bool
    tensor_name: str
    """For a leaf, the name of its parameter; for an operation, the name of its result; empty if it has no name."""
    description: str
    saved: tuple[SavedTensor, ...]
    column: int
    """Column of the picture: 0 = the leaves farthest from the root; the root is in the last column."""
    row: float
    """Row of the picture, from 0 at the top."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """Nodes, and the edges along which gradients flow."""

    root: str
    """The program's name for the tensor whose graph this is."""
    nodes: tuple[Node, ...]
    edges: tuple[tuple[int, int], ...]
    """(from, to) as indices into ``nodes``, in the direction of backward."""
    saved_b: int
    """Bytes of the saved tensors that are not freed."""
    released: bool
    """True if backward has freed saved tensors."""


def read_graph(root: str, named: Mapping[str, Tensor]) -> Graph:
    """Read the graph that leads to a tensor.

    Args:
        root: name of a tensor that has a ``grad_fn``.
        named: the program's tensors by name: parameters and results.

    Returns:
        At most `MAX_NODES` nodes, the nearest to the root.
    """
    nodes, edges, row_offsets, _truncated = walk(named[root].grad_fn, MAX_NODES)
    positions = node_positions(edges, row_offsets)
    result_names = {node: name for name, tensor in named.items() if (node := tensor.grad_fn) is not None}
    leaf_names = {id(tensor): name for name, tensor in named.items()}
    storage_names = {tensor.data_ptr(): name for name, tensor in reversed([*named.items()])}
    read_nodes: list[Node] = []
    for node, (column, row) in zip(nodes, positions, strict=True):
        leaf = getattr(node, "variable", None)
        name = str(node.name()).rpartition("::")[2]
        tensor_name = result_names.get(node, "") if leaf is None else leaf_names.get(id(leaf), "")
        description = DESCRIPTIONS.get(name, "").format(of=tensor_name or "the parameter")
        read_nodes.append(
            Node(
                name=name, leaf=leaf is not None, tensor_name=tensor_name, description=description,
                saved=tuple(_saved_tensors(node, storage_names)), column=column, row=row,
            )
        )  # fmt: skip
    all_saved = [each for node in read_nodes for each in node.saved]
    return Graph(
        root=root,
        nodes=tuple(read_nodes),
        edges=tuple(edges),
        saved_b=sum(each.size_b for each in all_saved if not each.freed),
        released=any(each.freed for each in all_saved),
    )


def _saved_tensors(node: Any, storage_names: Mapping[int, str]) -> Iterator[SavedTensor]:
    """Yield the saved tensors of a node; only the name of a freed tensor is known."""
    for name, tensor, state in saved_values(node):
        if isinstance(tensor, Tensor):
            size = tensor.numel() * tensor.element_size()
            tensor_name = storage_names.get(tensor.data_ptr(), "")
            yield SavedTensor(name=name, shape=tuple(tensor.shape), size_b=size, tensor_name=tensor_name, freed=False)
        elif state == "freed":
            yield SavedTensor(name=name, shape=(), size_b=0, tensor_name="", freed=True)


class LiveGraphs:
    """Counts the live nodes of all marked graphs; the marker in a node's metadata is deleted with the node."""

    def __init__(self) -> None:
        self._alive: set[int] = set()

    def mark(self, tensor: Tensor) -> None:
        """Mark the operations of a tensor's graph that have no marker yet."""
        for node in walk(tensor.grad_fn, MAX_NODES).nodes:
            # A parameter's AccumulateGrad node does not belong to one forward pass: other graphs may share it.
            if not hasattr(node, "variable") and _KEY not in node.metadata:
                node.metadata[_KEY] = LifetimeMarker(self._alive)

    @property
    def count(self) -> int:
        """Number of marked nodes that are alive."""
        return len(self._alive)


_KEY: Final = "trueloop.lifetime_marker"


class LifetimeMarker:
    """A marker in the metadata of a graph node, which is deleted with the node.

    Args:
        alive: the set of the ids of all live markers; the marker adds and later removes its own id.
    """

    __slots__ = ("_alive",)

    def __init__(self, alive: set[int]) -> None:
        self._alive = alive
        alive.add(id(self))

    def __del__(self) -> None:
        self._alive.discard(id(self))
