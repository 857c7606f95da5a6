"""What computing a block again in backward would spare in memory and cost in time, measured block by block."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from trueloop.autograd.graph import tensors_in
from trueloop.core.errors import InvalidConfig
from trueloop.core.formatting import format_size

ROUNDS = 3  # the quickest counts: whatever else the machine does only ever adds


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCost:
    """One block, over all of its calls in one forward pass."""

    name: str
    spares_b: int
    """Bytes saved for backward within it, without its inputs and outputs, which stay, and its parameters."""
    forward_s: float
    """What computing it once more takes."""


def measure_blocks(model: nn.Module, blocks: Mapping[str, nn.Module], run: Callable[[], Any]) -> tuple[BlockCost, ...]:
    """Run the forward pass a few times and return what each block keeps and takes.

    Buffers (BatchNorm's statistics) and random numbers are afterwards as they were before.

    Args:
        model: whose buffers are put back.
        blocks: by name, within the model.
        run: the forward pass up to the loss, with gradients enabled.

    Raises:
        InvalidConfig: a block is not called by it.

    Cost: four forward passes, and on a GPU two synchronisations for each call of a block.
    """
    owned = {_address(tensor) for tensor in (*model.parameters(), *model.buffers())}
    books = {name: _Book(owned) for name in blocks}
    with _as_before(model), ExitStack() as stack:
        for name, block in blocks.items():
            for handle in books[name].attach(block):
                stack.callback(handle.remove)
        for _ in range(ROUNDS + 1):  # the first one warms up
            for book in books.values():
                book.begin()
            run()
    idle = [name for name, book in books.items() if not book.calls]
    if idle:
        raise InvalidConfig(
            f"The block {idle[0]} is not called by the forward pass given.",
            why="What it keeps and takes cannot be measured.",
            fix="Give a function that runs the whole model, or leave the block out.",
        )
    return tuple(
        BlockCost(name=name, spares_b=sum(book.sizes.values()), forward_s=min(book.rounds[1:]))
        for name, book in books.items()
    )


def choose(costs: Sequence[BlockCost], spare_b: int) -> tuple[str, ...]:
    """Return the blocks to compute again so that so much memory is spared, at little time: most bytes per second first.

    Args:
        costs: of the blocks there are.
        spare_b: bytes to spare at least.

    Returns:
        Names in the order given; without any of them it would not be enough.

    Raises:
        InvalidConfig: all of them together spare less.
    """
    most = sum(cost.spares_b for cost in costs)
    if most < spare_b:
        raise InvalidConfig(
            f"{format_size(spare_b)} are to be spared, and all {len(costs)} blocks together spare {format_size(most)}.",
            fix="Make the micro-batch smaller, or spare less.",
        )
    ranked = sorted(costs, key=lambda cost: cost.spares_b / max(cost.forward_s, 1e-9))
    left = most
    dropped: set[str] = set()
    for cost in ranked:  # the least worth it is dropped first, where the rest is enough without it
        if left - cost.spares_b >= spare_b:
            dropped.add(cost.name)
            left -= cost.spares_b
    return tuple(cost.name for cost in costs if cost.name not in dropped)


class _Book:
    """What was saved and how long it took, of one block."""

    def __init__(self, owned: set[int]) -> None:
        self._owned = owned
        self._open: list[tuple[ExitStack, dict[int, int], set[int], float]] = []
        self.sizes: dict[int, int] = {}
        self.rounds: list[float] = []
        self.calls = 0

    def begin(self) -> None:
        """Begin a forward pass."""
        self.sizes, self.calls = {}, 0
        self.rounds.append(0.0)

    def attach(self, block: nn.Module) -> Iterator[Any]:
        yield block.register_forward_pre_hook(self._enter, with_kwargs=True)
        yield block.register_forward_hook(self._leave)

    def _enter(self, block: nn.Module, args: Any, kwargs: Any) -> None:
        found: dict[int, int] = {}

        def pack(tensor: Tensor) -> Tensor:
            if tensor.layout == torch.strided:
                found[_address(tensor)] = tensor.untyped_storage().nbytes()
            return tensor

        stack = ExitStack()
        stack.enter_context(torch.autograd.graph.saved_tensors_hooks(pack, _same))
        given = {_address(tensor) for tensor in tensors_in((args, kwargs))}
        _wait(block)
        self._open.append((stack, found, given, perf_counter()))

    def _leave(self, block: nn.Module, _args: Any, output: Any) -> None:
        _wait(block)
        stack, found, given, began_s = self._open.pop()
        self.rounds[-1] += perf_counter() - began_s
        stack.close()
        staying = self._owned | given | {_address(tensor) for tensor in tensors_in(output)}
        call = self.calls << 64  # an address may be used again by a later call
        self.sizes |= {call + address: nbytes for address, nbytes in found.items() if address not in staying}
        self.calls += 1


@contextmanager
def _as_before(model: nn.Module) -> Generator[None]:
    before = [(buffer, buffer.clone()) for buffer in model.buffers()]
    devices = sorted({each.device.index for each in model.parameters() if each.device.type == "cuda"})
    with torch.random.fork_rng(devices=devices):
        yield
    with torch.no_grad():
        for buffer, copy in before:
            buffer.copy_(copy)


def _wait(block: nn.Module) -> None:
    device = next((parameter.device for parameter in block.parameters()), None)
    if device is not None and device.type == "cuda":
        torch.cuda.synchronize(device)


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.layout == torch.strided else id(tensor)


def _same(tensor: Tensor) -> Tensor:
    return tensor
