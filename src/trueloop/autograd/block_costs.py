"""Measure how much memory recomputing each block would save, and how long it would take."""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from trueloop.autograd.graph import Address, storage_address, tensors_in
from trueloop.core.errors import InvalidConfig
from trueloop.core.formatting import format_size

ROUNDS = 3  # number of measurements, of which the fastest counts: other load on the machine only adds time


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCost:
    """Memory and time of one block, over all its calls in one forward pass."""

    name: str
    saves_b: int
    """Number of bytes saved for backward that recomputing would free: everything but inputs, outputs and weights."""
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
    owned = {storage_address(tensor) for tensor in (*model.parameters(), *model.buffers())}
    recorders = {name: _BlockRecorder(owned) for name in blocks}
    with _preserve_state(model), ExitStack() as stack:
        for name, block in blocks.items():
            for handle in recorders[name].attach(block):
                stack.callback(handle.remove)
        for _ in range(ROUNDS + 1):  # the first round is a warm-up
            for recorder in recorders.values():
                recorder.start_round()
            run()
    not_called = [name for name, recorder in recorders.items() if not recorder.calls]
    if not_called:
        raise InvalidConfig(
            f"The block {not_called[0]} is not called by the forward pass.",
            why="Its memory and time cannot be measured.",
            fix="Give a function that runs the whole model, or omit the block.",
        )
    return tuple(
        BlockCost(name=name, saves_b=recorder.saved_b, forward_s=min(recorder.round_seconds[1:]))
        for name, recorder in recorders.items()
    )


def choose_blocks(costs: Sequence[BlockCost], save_b: int) -> tuple[str, ...]:
    """Choose blocks to recompute that save a given number of bytes, preferably many bytes per second of recomputing.

    Args:
        costs: measured costs of all blocks.
        save_b: smallest number of bytes to save.

    Returns:
        Names in the order of ``costs``. If any of them were left out, the others would save too little.

    Raises:
        InvalidConfig: all blocks together save less.
    """
    total = sum(cost.saves_b for cost in costs)
    if total < save_b:
        raise InvalidConfig(
            f"All {len(costs)} blocks together save {format_size(total)}, but save_b is {format_size(save_b)}.",
            fix="Use a smaller micro-batch, or a smaller save_b.",
        )
    ranked = sorted(costs, key=lambda cost: cost.saves_b / max(cost.forward_s, 1e-9))
    saved = total
    dropped: set[str] = set()
    for cost in ranked:  # drop the least efficient blocks first, as long as the others save enough
        if saved - cost.saves_b >= save_b:
            dropped.add(cost.name)
            saved -= cost.saves_b
    return tuple(cost.name for cost in costs if cost.name not in dropped)


@dataclass(frozen=True, slots=True, kw_only=True)
class _OpenCall:
    """A call of a block that has not returned yet."""

    stack: ExitStack
    """Closed when the call returns: no more saved tensors are recorded then."""
    saved: dict[Address, int]
    """Number of bytes of each storage that the call has saved for backward."""
    inputs: set[Address]
    start_s: float


class _BlockRecorder:
    """Records the saved memory and the time of one block."""

    def __init__(self, owned: set[Address]) -> None:
        self._owned = owned
        self._open_calls: list[_OpenCall] = []
        self.saved_b = 0
        """Number of bytes that recomputing would free in this round."""
        self.round_seconds: list[float] = []
        self.calls = 0

    def start_round(self) -> None:
        """Start a forward pass."""
        self.saved_b = self.calls = 0
        self.round_seconds.append(0.0)

    def attach(self, block: nn.Module) -> Iterator[Any]:
        yield block.register_forward_pre_hook(self._enter, with_kwargs=True)
        yield block.register_forward_hook(self._leave)

    def _enter(self, block: nn.Module, args: Any, kwargs: Any) -> None:
        saved: dict[Address, int] = {}

        def pack(tensor: Tensor) -> Tensor:
            if tensor.layout == torch.strided:
                saved[storage_address(tensor)] = tensor.untyped_storage().nbytes()
            return tensor

        stack = ExitStack()
        stack.enter_context(torch.autograd.graph.saved_tensors_hooks(pack, _identity))
        inputs = {storage_address(tensor) for tensor in tensors_in((args, kwargs))}
        _synchronize(block)
        self._open_calls.append(_OpenCall(stack=stack, saved=saved, inputs=inputs, start_s=perf_counter()))

    def _leave(self, block: nn.Module, _args: Any, output: Any) -> None:
        _synchronize(block)
        call = self._open_calls.pop()
        self.round_seconds[-1] += perf_counter() - call.start_s
        call.stack.close()
        not_freed = self._owned | call.inputs | {storage_address(tensor) for tensor in tensors_in(output)}
        self.saved_b += sum(nbytes for address, nbytes in call.saved.items() if address not in not_freed)
        self.calls += 1


@contextmanager
def _preserve_state(model: nn.Module) -> Generator[None]:
    saved_buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    devices = sorted({each.device.index for each in model.parameters() if each.device.type == "cuda"})
    with torch.random.fork_rng(devices=devices):
        yield
    with torch.no_grad():
        for buffer, copy in saved_buffers:
            buffer.copy_(copy)


def _synchronize(block: nn.Module) -> None:
    device = next((parameter.device for parameter in block.parameters()), None)
    if device is not None and device.type == "cuda":
        torch.cuda.synchronize(device)


def _identity(tensor: Tensor) -> Tensor:
    return tensor
