"""Copy batches to a CUDA device on a stream of their own, while the device computes on earlier batches.

The loop requests its next batch as soon as the work on the current one is queued, long before that work is done:
nothing in an update waits for the device. So no batch has to be read early for its copy to overlap; the copy only has
to run outside the queue of that work. It uses its own stream: the work waits for the copy, and the copy for nothing.
Order, position and random numbers of the data do not change.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from torch import Tensor

from trueloop.training.memory.device import Movable, move_to_device
from trueloop.training.split_batch import container_items

DeviceTransfer = Callable[[Any], Any]
"""A function that returns a batch on the model's device."""


def make_device_transfer(device: torch.device) -> DeviceTransfer:
    """Return the transfer for a device: none on the CPU, a stream of its own on CUDA, a blocking move elsewhere."""
    if device.type == "cpu":
        return _identity
    if device.type == "cuda":
        return PrefetchStream(device, torch.cuda)
    return lambda batch: move_to_device(batch, device)


def _identity(batch: Any) -> Any:
    return batch


class PrefetchStream:
    """Copies batches on a stream of its own.

    From page-locked memory (`Loader` uses it on CUDA) the copy overlaps with the work; from pageable memory torch
    copies in steps and waits, as without this class. A custom batch type with unknown tensors is copied in order.

    Args:
        device: to copy to.
        streams: `torch.cuda`, or a test double of it: ``Stream(device)``, ``stream(s)``, ``current_stream(device)``.
    """

    def __init__(self, device: torch.device, streams: Any) -> None:
        self._device: Final = device
        self._streams = streams
        self._copy_stream: Any = None

    def __call__(self, batch: Any) -> Any:
        """Return the batch on the device; work queued there from now on sees the complete batch.

        Cost: no host synchronisation. The memory of a batch is reused once the work on it is done.
        """
        if any(part is None for part in _tensors(batch)):
            return move_to_device(batch, self._device)
        if self._copy_stream is None:  # not when the run is assembled: the first stream initialises the device
            self._copy_stream = self._streams.Stream(self._device)
        work = self._streams.current_stream(self._device)
        with self._streams.stream(self._copy_stream):
            moved = move_to_device(batch, self._device)
        work.wait_stream(self._copy_stream)
        for tensor in _tensors(moved):
            if tensor is not None and tensor.device == self._device:
                tensor.record_stream(work)  # or its memory would be reused while the work still reads it
        return moved


def _tensors(batch: Any) -> Iterator[Tensor | None]:
    """Yield every tensor of a batch; None for an opaque part that moves itself, such as a graph."""
    if isinstance(batch, Tensor):
        yield batch
    elif parts := container_items(batch):
        for _, part in parts:
            yield from _tensors(part)
    elif isinstance(batch, Movable):
        yield None
