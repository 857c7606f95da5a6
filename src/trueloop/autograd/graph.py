"""The graph behind a loss: operations, what each has saved, who else holds that, and which parameters it never reaches.

What is saved for backward is most of the memory of training. A tensor is freed with the last that holds it, so of each
piece of memory all holders are told: the nodes, and the parameter, buffer or given tensor that lives on anyway.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, cast

import torch
from torch import Tensor, nn

from trueloop.autograd.backward_graph import State, saved, walk
from trueloop.core.errors import InvalidData

MOST: Final = 20_000  # nodes
_MODULE: Final = "trueloop.module"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A tensor that a node has saved for its backward."""

    name: str
    """As torch calls it in that operation."""
    state: State
    """"kept", "freed" by an earlier backward, or "hooked": behind saved-tensor hooks, as of checkpointing."""
    shape: tuple[int, ...]
    dtype: str
    memory: int | None
    """Place in the graph's ``memories``; None where it is not there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One operation, or the leaf where a parameter's gradient arrives."""

    name: str
    """torch's name: "AddmmBackward0"; "AccumulateGrad" of a leaf."""
    of: str
    """Of a leaf: the parameter's name; of an operation: the tensor that it made, where that was named."""
    module: str
    """The innermost module in whose forward it was made; empty where that was not followed."""
    leaf: bool
    kept: tuple[Kept, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """A piece of memory that the graph holds on to."""

    size_b: int
    """Of the whole storage: a saved view keeps all of what it is a view of."""
    owner: str
    """Parameter, buffer or given tensor that has it anyway; empty = it goes with the graph."""
    holders: tuple[tuple[int, str], ...]
    """(place of the node, name of what it saved)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """Everything behind a loss."""

    nodes: tuple[Node, ...]
    """Breadth first from the loss."""
    edges: tuple[tuple[int, int], ...]
    """(from, to) by place in ``nodes``, as backward goes."""
    turns: tuple[float, ...]
    """For drawing, see `trueloop.autograd.backward_graph.places`."""
    memories: tuple[Memory, ...]
    """The largest first."""
    unreachable: tuple[str, ...]
    """Parameters that require a gradient and get none from this loss; where the graph is ``cut``, some of them may."""
    frozen: tuple[str, ...]
    """Parameters that require no gradient."""
    cut: bool
    """There are more nodes than were read."""

    @property
    def alone_b(self) -> int:
        """Bytes that the graph alone keeps alive: what backward frees."""
        return sum(each.size_b for each in self.memories if not each.owner)

    @property
    def released(self) -> bool:
        """Backward has been through it."""
        return any(kept.state == "freed" for node in self.nodes for kept in node.kept)

    @property
    def hooked(self) -> int:
        """Saved tensors behind hooks, whose size is not told."""
        return sum(kept.state == "hooked" for node in self.nodes for kept in node.kept)


def inspect(loss: Tensor, model: nn.Module | None = None, named: Mapping[str, Tensor] | None = None) -> Graph:
    """Read the graph behind a tensor; nothing is run, kept or freed.

    Args:
        loss: any tensor with a ``grad_fn``.
        model: whose parameters and buffers are named, and looked for.
        named: further tensors by name, such as the batch or results on the way.

    Returns:
        At most 20,000 nodes, the nearest to the loss.

    Raises:
        InvalidData: the tensor has no graph.
    """
    if loss.grad_fn is None:
        raise InvalidData(
            f"The tensor of shape {tuple(loss.shape)} has no graph.",
            why="It is a leaf, or was made under no_grad, or detached.",
            fix="Give the loss as it is before .item(), .detach() or backward's end.",
        )
    parameters = dict(model.named_parameters()) if model else {}
    owned = {**(dict(model.named_buffers()) if model else {}), **parameters}
    everything = {**(named or {}), **owned}
    nodes, edges, turns, cut = walk(loss.grad_fn, MOST)
    held = [[each for each in saved(node) if isinstance(each[1], Tensor) or each[2] != "kept"] for node in nodes]
    memories, numbers = _memories(held, everything)
    made = {tensor.grad_fn: name for name, tensor in (named or {}).items() if tensor.grad_fn is not None}
    leaves = {id(tensor): name for name, tensor in reversed([*everything.items()])}
    reached = {id(node.variable) for node in nodes if hasattr(node, "variable")}
    return Graph(
        nodes=tuple(
            Node(
                name=str(node.name()).rpartition("::")[2],
                of=leaves.get(id(node.variable), "") if hasattr(node, "variable") else made.get(node, ""),
                module=str(node.metadata.get(_MODULE, "")),
                leaf=hasattr(node, "variable"),
                kept=tuple(_kept(*each, numbers) for each in kept),
            )
            for node, kept in zip(nodes, held, strict=True)
        ),
        edges=tuple(edges),
        turns=tuple(turns),
        memories=memories,
        unreachable=tuple(n for n, each in parameters.items() if each.requires_grad and id(each) not in reached),
        frozen=tuple(name for name, each in parameters.items() if not each.requires_grad),
        cut=cut,
    )


@contextmanager
def following(model: nn.Module) -> Generator[None]:
    """While entered, note at each operation in which module's forward it was made; hooks are taken off again.

    Args:
        model: called within, not compiled.
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
            # An inner module has told its own already; what was made before it in this one may still lie behind.
            node.metadata.setdefault(_MODULE, names[module])
            waiting.extend(child for child, _ in node.next_functions if child is not None)

    handles = [
        handle
        for module in names
        for handle in (
            module.register_forward_pre_hook(enter, with_kwargs=True),
            module.register_forward_hook(leave),
        )
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in containers of Python's own."""
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


def _memories(held: list[Saved], named: Mapping[str, Tensor]) -> tuple[tuple[Memory, ...], dict[Address, int]]:
    """Return the storages that nodes hold on to, the largest first, and the place of each by address."""
    owners = {_address(tensor): name for name, tensor in reversed([*named.items()])}
    sizes: dict[Address, int] = {}
    holders: dict[Address, list[tuple[int, str]]] = {}
    for place, kept in enumerate(held):
        for name, value, _state in kept:
            if isinstance(value, Tensor):
                sizes[_address(value)] = _size_b(value)
                holders.setdefault(_address(value), []).append((place, name))
    order = sorted(sizes, key=lambda address: -sizes[address])
    found = (Memory(size_b=sizes[a], owner=owners.get(a, ""), holders=tuple(holders[a])) for a in order)
    return tuple(found), {address: place for place, address in enumerate(order)}


def _address(tensor: Tensor) -> Address:
    strided = tensor.layout == torch.strided  # a sparse tensor has no storage of its own; its object stands for it
    return str(tensor.device), tensor.untyped_storage().data_ptr() if strided else id(tensor)


def _size_b(tensor: Tensor) -> int:
    strided = tensor.layout == torch.strided
    return tensor.untyped_storage().nbytes() if strided else tensor.numel() * tensor.element_size()


def _kept(name: str, value: Any, state: State, places: Mapping[Address, int]) -> Kept:
    if not isinstance(value, Tensor):
        return Kept(name=name, state=state, shape=(), dtype="", memory=None)
    dtype = str(value.dtype).removeprefix("torch.")
    return Kept(name=name, state=state, shape=tuple(value.shape), dtype=dtype, memory=places[_address(value)])
