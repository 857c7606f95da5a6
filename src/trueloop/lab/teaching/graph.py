"""The graph behind a tensor as torch keeps it: its nodes, what each has saved, and where each is drawn.

Read from ``grad_fn`` and ``next_functions``; nothing is run and nothing is kept. A node that backward has been through
has let go of what it had saved, and says so itself.
"""
# ruff: noqa: RUF001 - formulas use × and −

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from torch import Tensor

from trueloop.autograd.backward_graph import places, saved, walk

MAX_NODES: Final = 200  # nodes; a picture of more tells nothing

DESCRIPTIONS: Final = {
    "AccumulateGrad": "adds what arrives into {of}.grad",
    "AddmmBackward0": "inputs × weightᵀ + bias: backward needs the inputs for the weight's gradient, and the weight "
    "for that of the inputs",
    "TBackward0": "the transposed weight: nothing needs to be saved",
    "ReluBackward0": "max(0, x): backward lets through where the result was above 0",
    "MseLossBackward0": "the mean of the squared differences",
    "LogSoftmaxBackward0": "the logarithms of the softmax's probabilities",
    "NllLossBackward0": "the mean of −log p(right class) over the batch",
}
"""torch's name of an operation, and what it does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A tensor that a node keeps for its backward."""

    name: str
    """As torch calls it in that operation."""
    shape: tuple[int, ...]
    size_b: int
    of: str
    """The program's name for that tensor; empty where it has none."""
    freed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One operation of the graph, or a leaf that gradients are added up in."""

    name: str
    leaf: bool
    of: str
    """Of a leaf: the parameter's name; of an operation: the tensor that it made, where that has a name."""
    does: str
    saved: tuple[Saved, ...]
    column: int
    """0 = the leaves furthest from the root, which is in the last one."""
    row: float
    """0 = the top."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """Nodes and who hands its gradient on to whom."""

    root: str
    """The program's name for the tensor it was read from."""
    nodes: tuple[Node, ...]
    edges: tuple[tuple[int, int], ...]
    """(from, to) by place in ``nodes``, as backward goes."""
    saved_b: int
    """Bytes of tensors it keeps at this moment."""
    released: bool
    """Backward has been through it."""


def read(root: str, named: Mapping[str, Tensor]) -> Graph:
    """Read the graph that leads to a tensor.

    Args:
        root: name of a tensor that has a ``grad_fn``.
        named: the program's tensors by name: parameters and results.

    Returns:
        At most 200 nodes, the nearest to the root.
    """
    nodes, edges, turns, _cut = walk(named[root].grad_fn, MAX_NODES)
    placed = places(edges, turns)
    names = {node: name for name, tensor in named.items() if (node := tensor.grad_fn) is not None}
    leaves = {id(tensor): name for name, tensor in named.items()}
    owners = {tensor.data_ptr(): name for name, tensor in reversed([*named.items()])}
    read: list[Node] = []
    for node, (column, row) in zip(nodes, placed, strict=True):
        leaf = getattr(node, "variable", None)
        name = str(node.name()).rpartition("::")[2]
        of = names.get(node, "") if leaf is None else leaves.get(id(leaf), "")
        does = DESCRIPTIONS.get(name, "").format(of=of or "the parameter")
        kept = tuple(_saved(node, owners))
        read.append(Node(name=name, leaf=leaf is not None, of=of, does=does, saved=kept, column=column, row=row))
    everything = [each for node in read for each in node.saved]
    return Graph(
        root=root,
        nodes=tuple(read),
        edges=tuple(edges),
        saved_b=sum(each.size_b for each in everything if not each.freed),
        released=any(each.freed for each in everything),
    )


def _saved(node: Any, owners: Mapping[int, str]) -> Iterator[Saved]:
    """Yield what a node keeps; of a freed tensor only the name is left."""
    for name, tensor, state in saved(node):
        if isinstance(tensor, Tensor):
            size = tensor.numel() * tensor.element_size()
            owner = owners.get(tensor.data_ptr(), "")
            yield Saved(name=name, shape=tuple(tensor.shape), size_b=size, of=owner, freed=False)
        elif state == "freed":
            yield Saved(name=name, shape=(), size_b=0, of="", freed=True)


class LiveGraphs:
    """Counts the nodes that are alive, of all graphs marked so far: a mark in a node's metadata dies with the node.

    Graphs are counted until they are freed, whatever holds them.
    """

    def __init__(self) -> None:
        self._alive: set[int] = set()

    def mark(self, tensor: Tensor) -> None:
        """LifetimeMarker the operations behind a tensor that have no mark yet."""
        for node in walk(tensor.grad_fn, MAX_NODES).nodes:
            # A parameter's AccumulateGrad node is no part of one forward: another graph may hold it too.
            if not hasattr(node, "variable") and _KEY not in node.metadata:
                node.metadata[_KEY] = LifetimeMarker(self._alive)

    @property
    def count(self) -> int:
        """Operations alive now."""
        return len(self._alive)


_KEY: Final = "trueloop.shown"


class LifetimeMarker:
    """Lies in the metadata of a graph's node and goes with it.

    Args:
        alive: holds a number for each mark that is still there.
    """

    __slots__ = ("_alive",)

    def __init__(self, alive: set[int]) -> None:
        self._alive = alive
        alive.add(id(self))

    def __del__(self) -> None:
        self._alive.discard(id(self))
