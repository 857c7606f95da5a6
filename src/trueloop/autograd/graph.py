"""Inspects the autograd graph of a loss: operations, saved tensors and what else holds them, unreached parameters.

Tensors saved for backward take most of the memory of training. A storage is freed with its last holder, so all holders
are listed: the nodes, and the parameter, buffer or named tensor that exists without the graph.
"""

from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, cast

import torch
from torch import Tensor, nn

from trueloop.autograd.backward_graph import State, saved, walk
from trueloop.core.errors import InvalidData

MAX_NODES: Final = 20_000
_MODULE: Final = "trueloop.module"


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedTensor:
    """A tensor that a node has saved for its backward."""

    name: str
    """Name of the tensor in torch's operation."""
    state: State
    """"kept", "freed" by an earlier backward pass, or "hooked": packed by saved-tensor hooks, as in checkpointing."""
    shape: tuple[int, ...]
    dtype: str
    memory: int | None
    """Index of the tensor's storage in the graph's ``memories``; None if the tensor is not available."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One operation, or the leaf where a parameter's gradient arrives."""

    name: str
    """torch's name of the node: "AddmmBackward0", or "AccumulateGrad" for a leaf."""
    tensor_name: str
    """Name of the parameter (for a leaf), or of the tensor in ``named`` that the operation created; else empty."""
    module: str
    """Innermost module in whose forward the node was created; empty if that was not recorded."""
    leaf: bool
    saved: tuple[SavedTensor, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """A storage that the graph keeps alive."""

    size_b: int
    """Size of the whole storage in bytes: a saved view keeps its base alive."""
    owner: str
    """Parameter, buffer or named tensor with this storage; empty = the storage is freed with the graph."""
    holders: tuple[tuple[int, str], ...]
    """(index of the node, name of the saved tensor) of every saved tensor with this storage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """The autograd graph of a loss."""

    nodes: tuple[Node, ...]
    """The nodes, breadth first from the loss."""
    edges: tuple[tuple[int, int], ...]
    """(from, to) as indices into ``nodes``, in the direction of backward."""
    offsets: tuple[float, ...]
    """Row offsets for drawing, see `trueloop.autograd.backward_graph.places`."""
    memories: tuple[Memory, ...]
    """The saved tensors' storages, the largest first."""
    unreachable: tuple[str, ...]
    """Parameters that require a gradient but get none from this loss, as far as the nodes show (see ``cut``)."""
    frozen: tuple[str, ...]
    """Parameters that require no gradient."""
    cut: bool
    """True if the graph has more nodes than were read."""

    @property
    def alone_b(self) -> int:
        """Number of bytes that only the graph keeps alive; backward frees them."""
        return sum(each.size_b for each in self.memories if not each.owner)

    @property
    def released(self) -> bool:
        """True after a backward pass that freed the saved tensors."""
        return any(tensor.state == "freed" for node in self.nodes for tensor in node.saved)

    @property
    def hooked(self) -> int:
        """Number of saved tensors packed by hooks, whose size is unknown."""
        return sum(tensor.state == "hooked" for node in self.nodes for tensor in node.saved)


def inspect(loss: Tensor, model: nn.Module | None = None, named: Mapping[str, Tensor] | None = None) -> Graph:
    """Read the autograd graph of a tensor, without running, changing or freeing it.

    Args:
        loss: any tensor with a ``grad_fn``.
        model: model whose parameters and buffers are looked for in the graph.
        named: further tensors by name, such as the batch or intermediate results.

    Returns:
        The graph, of at most the 20,000 nodes nearest to the loss.

    Raises:
        InvalidData: the tensor has no graph.
    """
    if loss.grad_fn is None:
        raise InvalidData(
            f"The tensor of shape {tuple(loss.shape)} has no graph.",
            why="It is a leaf, is detached, or was created under no_grad.",
            fix="Give the loss before .item(), .detach() or backward().",
        )
    parameters = dict(model.named_parameters()) if model else {}
    owned = {**(dict(model.named_buffers()) if model else {}), **parameters}
    everything = {**(named or {}), **owned}
    nodes, edges, offsets, cut = walk(loss.grad_fn, MAX_NODES)
    saved_by = [[each for each in saved(node) if isinstance(each[1], Tensor) or each[2] != "kept"] for node in nodes]
    memories, indices = _memories(saved_by, everything)
    results = {tensor.grad_fn: name for name, tensor in (named or {}).items() if tensor.grad_fn is not None}
    leaves = {id(tensor): name for name, tensor in reversed([*everything.items()])}
    reached = {id(node.variable) for node in nodes if hasattr(node, "variable")}
    return Graph(
        nodes=tuple(
            Node(
                name=str(node.name()).rpartition("::")[2],
                tensor_name=leaves.get(id(node.variable), "") if hasattr(node, "variable") else results.get(node, ""),
                module=str(node.metadata.get(_MODULE, "")),
                leaf=hasattr(node, "variable"),
                saved=tuple(_to_saved_tensor(*each, indices) for each in tensors),
            )
            for node, tensors in zip(nodes, saved_by, strict=True)
        ),
        edges=tuple(edges),
        offsets=tuple(offsets),
        memories=memories,
        unreachable=tuple(n for n, each in parameters.items() if each.requires_grad and id(each) not in reached),
        frozen=tuple(name for name, each in parameters.items() if not each.requires_grad),
        cut=cut,
    )


@contextmanager
def record_modules(model: nn.Module) -> Generator[None]:
    """Record for each operation in which module's forward it is created, while the context is active.

    Args:
        model: the model that is called within the context; it must not be compiled.
    """
    before: dict[nn.Module, list[set[Any]]] = {}
    names = {module: name for name, module in model.named_modules()}

    def enter(module: nn.Module, args: Any, kwargs: Any) -> None:
        before.setdefault(module, []).append({t.grad_fn for t in tensors_in((args, kwargs)) if t.grad_fn is not None})

    def leave(module: nn.Module, _args: Any, output: Any) -> None:
        known = before[module].pop()
        waiting = [tensor.grad_fn for tensor in tensors_in(output) if tensor.grad_fn is not None]
        while waiting:
            node: Any = waiting.pop()
            if node in known or hasattr(node, "variable"):
                continue
            known.add(node)
            # Inner modules have labelled their own nodes already; behind these there may be nodes of this module.
            node.metadata.setdefault(_MODULE, names[module])
            waiting.extend(child for child, _ in node.next_functions if child is not None)

    handles = [
        handle
        for module in names
        for handle in (module.register_forward_pre_hook(enter, with_kwargs=True), module.register_forward_hook(leave))
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in nested tuples, lists and mappings."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for each in cast("Mapping[Any, Any]", value).values():
            yield from tensors_in(each)
    elif isinstance(value, tuple | list):
        for each in cast("tuple[Any, ...]", value):
            yield from tensors_in(each)


Saved = list[tuple[str, Any, State]]
Address = tuple[str, int]


def _memories(saved_by: list[Saved], named: Mapping[str, Tensor]) -> tuple[tuple[Memory, ...], dict[Address, int]]:
    """Return the storages that nodes hold, the largest first, and the index of each by address."""
    owners = {_address(tensor): name for name, tensor in reversed([*named.items()])}
    sizes: dict[Address, int] = {}
    holders: dict[Address, list[tuple[int, str]]] = {}
    for node, values in enumerate(saved_by):
        for name, value, _state in values:
            if isinstance(value, Tensor):
                sizes[_address(value)] = _size_b(value)
                holders.setdefault(_address(value), []).append((node, name))
    order = sorted(sizes, key=lambda address: -sizes[address])
    memories = (Memory(size_b=sizes[a], owner=owners.get(a, ""), holders=tuple(holders[a])) for a in order)
    return tuple(memories), {address: index for index, address in enumerate(order)}


def _address(tensor: Tensor) -> Address:
    strided = tensor.layout == torch.strided  # a sparse tensor has no single storage; its id is used
    return str(tensor.device), tensor.untyped_storage().data_ptr() if strided else id(tensor)


def _size_b(tensor: Tensor) -> int:
    strided = tensor.layout == torch.strided
    return tensor.untyped_storage().nbytes() if strided else tensor.numel() * tensor.element_size()


def _to_saved_tensor(name: str, value: Any, state: State, indices: Mapping[Address, int]) -> SavedTensor:
    if not isinstance(value, Tensor):
        return SavedTensor(name=name, state=state, shape=(), dtype="", memory=None)
    dtype = str(value.dtype).removeprefix("torch.")
    return SavedTensor(name=name, state=state, shape=tuple(value.shape), dtype=dtype, memory=indices[_address(value)])
