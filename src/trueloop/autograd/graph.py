"""Inspect the autograd graph of a loss: operations, saved tensors and what else holds them, unreached parameters.

Tensors saved for backward take most of the memory of training. A storage is freed with its last holder, so all holders
are listed: the nodes, and the parameter, buffer or named tensor that exists without the graph.
"""

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, cast

import torch
from torch import Tensor, nn

from trueloop.autograd.backward_graph import SavedValue, State, saved_values, walk
from trueloop.core.errors import InvalidData

MAX_NODES: Final = 20_000
_MODULE: Final = "trueloop.module"


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedTensor:
    """A tensor that a node has saved for the backward pass."""

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
    row_offsets: tuple[float, ...]
    """Row offset of each node from its first parent in a drawing, see `backward_graph.node_positions`."""
    memories: tuple[Memory, ...]
    """The saved tensors' storages, the largest first."""
    unreachable: tuple[str, ...]
    """Parameters that require a gradient but get none from the nodes read; if ``cut``, others may give them one."""
    frozen: tuple[str, ...]
    """Parameters that require no gradient."""
    cut: bool
    """True if the graph has more nodes than the limit, so that some were not read."""

    @property
    def graph_only_b(self) -> int:
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
    all_named = {**(named or {}), **owned}
    nodes, edges, row_offsets, cut = walk(loss.grad_fn, MAX_NODES)
    saved_by_node = [
        [saved for saved in saved_values(node) if isinstance(saved.value, Tensor) or saved.state != "kept"]
        for node in nodes
    ]
    memories, indices = _memories(saved_by_node, all_named)
    results = {tensor.grad_fn: name for name, tensor in (named or {}).items() if tensor.grad_fn is not None}
    leaves = {id(tensor): name for name, tensor in reversed([*all_named.items()])}
    reached = {id(node.variable) for node in nodes if hasattr(node, "variable")}
    return Graph(
        nodes=tuple(
            Node(
                name=str(node.name()).rpartition("::")[2],
                tensor_name=leaves.get(id(node.variable), "") if hasattr(node, "variable") else results.get(node, ""),
                module=str(node.metadata.get(_MODULE, "")),
                leaf=hasattr(node, "variable"),
                saved=tuple(_to_saved_tensor(saved, indices) for saved in saved_by),
            )
            for node, saved_by in zip(nodes, saved_by_node, strict=True)
        ),
        edges=tuple(edges),
        row_offsets=tuple(row_offsets),
        memories=memories,
        unreachable=tuple(n for n, each in parameters.items() if each.requires_grad and id(each) not in reached),
        frozen=tuple(name for name, each in parameters.items() if not each.requires_grad),
        cut=cut,
    )


@contextmanager
def record_modules(model: nn.Module) -> Generator[None]:
    """While the context is active, record for each operation the innermost module whose forward creates it.

    Args:
        model: the model that is called within the context; it must not be compiled.
    """
    inputs: dict[nn.Module, list[set[Any]]] = {}
    names = {module: name for name, module in model.named_modules()}

    def enter(module: nn.Module, args: Any, kwargs: Any) -> None:
        inputs.setdefault(module, []).append({t.grad_fn for t in tensors_in((args, kwargs)) if t.grad_fn is not None})

    def leave(module: nn.Module, _args: Any, output: Any) -> None:
        visited = inputs[module].pop()
        pending = [tensor.grad_fn for tensor in tensors_in(output) if tensor.grad_fn is not None]
        while pending:
            node: Any = pending.pop()
            if node in visited or hasattr(node, "variable"):
                continue
            visited.add(node)
            # Inner modules have labelled their own nodes already; behind these there may be nodes of this module.
            node.metadata.setdefault(_MODULE, names[module])
            pending.extend(child for child, _ in node.next_functions if child is not None)

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


Address = tuple[str, int]


def _memories(
    saved_by_node: Sequence[Sequence[SavedValue]], named: Mapping[str, Tensor]
) -> tuple[tuple[Memory, ...], dict[Address, int]]:
    """Return the storages that nodes hold, the largest first, and the index of each by address."""
    owners = {storage_address(tensor): name for name, tensor in reversed([*named.items()])}
    sizes: dict[Address, int] = {}
    holders: dict[Address, list[tuple[int, str]]] = {}
    for node, saved_by in enumerate(saved_by_node):
        for name, value, _state in saved_by:
            if isinstance(value, Tensor):
                sizes[storage_address(value)] = _size_b(value)
                holders.setdefault(storage_address(value), []).append((node, name))
    order = sorted(sizes, key=lambda address: -sizes[address])
    memories = (Memory(size_b=sizes[a], owner=owners.get(a, ""), holders=tuple(holders[a])) for a in order)
    return tuple(memories), {address: index for index, address in enumerate(order)}


def storage_address(tensor: Tensor) -> Address:
    """Return the device and the address of a tensor's memory, which is the same for all its views."""
    strided = tensor.layout == torch.strided  # a sparse tensor has no single storage; its id is used
    return str(tensor.device), tensor.untyped_storage().data_ptr() if strided else id(tensor)


def _size_b(tensor: Tensor) -> int:
    strided = tensor.layout == torch.strided
    return tensor.untyped_storage().nbytes() if strided else tensor.numel() * tensor.element_size()


def _to_saved_tensor(saved: SavedValue, indices: Mapping[Address, int]) -> SavedTensor:
    name, value, state = saved
    if not isinstance(value, Tensor):
        return SavedTensor(name=name, state=state, shape=(), dtype="", memory=None)
    dtype = str(value.dtype).removeprefix("torch.")
    return SavedTensor(
        name=name, state=state, shape=tuple(value.shape), dtype=dtype, memory=indices[storage_address(value)]
    )
