"""Measures how much memory recomputing each block would save, and how long it would take."""

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

ROUNDS = 3  # number of measurements, of which the fastest counts: other load on the machine only adds time


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCost:
    """Memory and time of one block, over all its calls in one forward pass."""

    name: str
    spares_b: int
    """Number of bytes that the block saves for backward and recomputing frees: all except inputs, outputs, weights."""
    forward_s: float
    """Number of seconds to compute the block again."""


def measure_blocks(model: nn.Module, blocks: Mapping[str, nn.Module], run: Callable[[], Any]) -> tuple[BlockCost, ...]:
    """Run the forward pass a few times and measure the saved memory and time of each block.

    Buffers (BatchNorm's statistics) and random generators are restored afterwards.

    Args:
        model: model whose buffers are restored.
        blocks: submodules by name.
        run: function that runs the forward pass and the loss, with gradients enabled.

    Raises:
        InvalidConfig: the forward pass does not call a block.

    Cost: four forward passes; waits for the GPU before and after each call of a block.
    """
    owned = {_address(tensor) for tensor in (*model.parameters(), *model.buffers())}
    recorders = {name: _BlockRecorder(owned) for name in blocks}
    with _preserve_state(model), ExitStack() as stack:
        for name, block in blocks.items():
            for handle in recorders[name].attach(block):
                stack.callback(handle.remove)
        for _ in range(ROUNDS + 1):  # the first round is a warm-up
            for recorder in recorders.values():
                recorder.begin()
            run()
    idle = [name for name, recorder in recorders.items() if not recorder.calls]
    if idle:
        raise InvalidConfig(
            f"The block {idle[0]} is not called by the forward pass.",
            why="Its memory and time cannot be measured.",
            fix="Give a function that runs the whole model, or omit the block.",
        )
    return tuple(
        BlockCost(name=name, spares_b=sum(recorder.sizes.values()), forward_s=min(recorder.rounds[1:]))
        for name, recorder in recorders.items()
    )


def choose(costs: Sequence[BlockCost], spare_b: int) -> tuple[str, ...]:
    """Choose blocks to recompute that save a given number of bytes, preferring those with the most bytes per second.

    Args:
        costs: measured costs of all blocks.
        spare_b: smallest number of bytes to save.

    Returns:
        Names in the order of ``costs``; without any of these blocks, too little would be saved.

    Raises:
        InvalidConfig: all blocks together save less.
    """
    total = sum(cost.spares_b for cost in costs)
    if total < spare_b:
        raise InvalidConfig(
            f"All {len(costs)} blocks together save {format_size(total)}, but spare_b asks for {format_size(spare_b)}.",
            fix="Use a smaller micro-batch, or a smaller spare_b.",
        )
    ranked = sorted(costs, key=lambda cost: cost.spares_b / max(cost.forward_s, 1e-9))
    saved = total
    dropped: set[str] = set()
    for cost in ranked:  # drop the least efficient blocks first, as long as the others save enough
        if saved - cost.spares_b >= spare_b:
            dropped.add(cost.name)
            saved -= cost.spares_b
    return tuple(cost.name for cost in costs if cost.name not in dropped)


class _BlockRecorder:
    """Records the saved memory and the time of one block."""

    def __init__(self, owned: set[int]) -> None:
        self._owned = owned
        self._open: list[tuple[ExitStack, dict[int, int], set[int], float]] = []
        self.sizes: dict[int, int] = {}
        self.rounds: list[float] = []
        self.calls = 0

    def begin(self) -> None:
        """Start a forward pass."""
        self.sizes, self.calls = {}, 0
        self.rounds.append(0.0)

    def attach(self, block: nn.Module) -> Iterator[Any]:
        yield block.register_forward_pre_hook(self._enter, with_kwargs=True)
        yield block.register_forward_hook(self._leave)

    def _enter(self, block: nn.Module, args: Any, kwargs: Any) -> None:
        saved: dict[int, int] = {}

        def pack(tensor: Tensor) -> Tensor:
            if tensor.layout == torch.strided:
                saved[_address(tensor)] = tensor.untyped_storage().nbytes()
            return tensor

        stack = ExitStack()
        stack.enter_context(torch.autograd.graph.saved_tensors_hooks(pack, _same))
        inputs = {_address(tensor) for tensor in tensors_in((args, kwargs))}
        _synchronize(block)
        self._open.append((stack, saved, inputs, perf_counter()))

    def _leave(self, block: nn.Module, _args: Any, output: Any) -> None:
        _synchronize(block)
        stack, saved, inputs, start_s = self._open.pop()
        self.rounds[-1] += perf_counter() - start_s
        stack.close()
        not_freed = self._owned | inputs | {_address(tensor) for tensor in tensors_in(output)}
        call = self.calls << 64  # a later call may reuse an address
        self.sizes |= {call + address: nbytes for address, nbytes in saved.items() if address not in not_freed}
        self.calls += 1


@contextmanager
def _preserve_state(model: nn.Module) -> Generator[None]:
    before = [(buffer, buffer.clone()) for buffer in model.buffers()]
    devices = sorted({each.device.index for each in model.parameters() if each.device.type == "cuda"})
    with torch.random.fork_rng(devices=devices):
        yield
    with torch.no_grad():
        for buffer, copy in before:
            buffer.copy_(copy)


def _synchronize(block: nn.Module) -> None:
    device = next((parameter.device for parameter in block.parameters()), None)
    if device is not None and device.type == "cuda":
        torch.cuda.synchronize(device)


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.layout == torch.strided else id(tensor)


def _same(tensor: Tensor) -> Tensor:
    return tensor
