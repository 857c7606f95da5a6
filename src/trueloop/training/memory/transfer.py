"""Copy batches to a CUDA device on a stream of their own, while the device computes on earlier batches.

The loop requests the next batch as soon as the work on the current one is queued, long before this work is done,
because nothing in an update waits for the GPU. So the copy overlaps with the work if it runs on another stream: the
work waits for the copy, but the copy does not wait for earlier work. No batch is read ahead, so order, position and
random numbers of the data do not change.
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
    """Return the transfer for a device: none for the CPU, a separate stream for CUDA, a blocking move for others."""
    if device.type == "cpu":
        return _identity
    if device.type == "cuda":
        return PrefetchStream(device, torch.cuda)
    return lambda batch: move_to_device(batch, device)


def _identity(batch: Any) -> Any:
    return batch


class PrefetchStream:
    """Copies batches on a separate stream.

    Copies from page-locked memory (which `Loader` uses for CUDA) overlap with the work; for pageable memory torch waits
    for the copy, as it does without this class. Custom batch types with unknown tensors are copied on the main stream.

    Args:
        device: device to copy to.
        streams: `torch.cuda`, or a test double with ``Stream(device)``, ``stream(s)`` and ``current_stream(device)``.
    """

    def __init__(self, device: torch.device, streams: Any) -> None:
        self._device: Final = device
        self._streams = streams
        self._copy_stream: Any = None

    def __call__(self, batch: Any) -> Any:
        """Return the batch on the device; work that is queued later starts after the copy is complete.

        Cost: does not wait for the GPU. The memory of a batch is reused after the work on it is done.
        """
        if any(part is None for part in _tensors(batch)):
            return move_to_device(batch, self._device)
        if self._copy_stream is None:  # created as late as possible, because the first stream initialises the device
            self._copy_stream = self._streams.Stream(self._device)
        main_stream = self._streams.current_stream(self._device)
        with self._streams.stream(self._copy_stream):
            moved = move_to_device(batch, self._device)
        main_stream.wait_stream(self._copy_stream)
        for tensor in _tensors(moved):
            if tensor is not None and tensor.device == self._device:
                tensor.record_stream(main_stream)  # otherwise its memory could be reused while the work still reads it
        return moved


def _tensors(batch: Any) -> Iterator[Tensor | None]:
    """Yield every tensor of a batch; None for a part of another type that has ``to``, such as a graph."""
    if isinstance(batch, Tensor):
        yield batch
    elif parts := container_items(batch):
        for _, part in parts:
            yield from _tensors(part)
    elif isinstance(batch, Movable):
        yield None
