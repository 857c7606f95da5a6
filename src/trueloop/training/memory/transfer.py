"""Batches on their way to a CUDA device, copied while it still computes on those before.

The loop asks for its next batch as soon as it has handed the device the work on this one, long before that work is
done: nothing in an update waits for the device. So no batch has to be drawn early for its copy to overlap, only the
copy has to stand outside the queue of that work. It goes to a stream of its own; the work waits for it, and it waits
for nothing. Order, position and random numbers of the data are untouched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from torch import Tensor

from trueloop.training.memory.device import Movable, move
from trueloop.training.split_batch import fields

Bring = Callable[[Any], Any]
"""A batch, to where the model is."""


def bringing(device: torch.device) -> Bring:
    """Return how batches get to a device: not at all on the CPU, beside the work on CUDA, in line with it elsewhere."""
    if device.type == "cpu":
        return _as_it_is
    if device.type == "cuda":
        return Beside(device, torch.cuda)
    return lambda batch: move(batch, device)


def _as_it_is(batch: Any) -> Any:
    return batch


class Beside:
    """Copies on a stream of its own.

    From page-locked memory (`Loader` has it on CUDA) the copy overlaps with the work; from ordinary memory torch copies
    in steps and waits, as without this. A batch type of its own, whose tensors cannot be found, is copied in line.

    Args:
        device: to copy to.
        streams: `torch.cuda`, or what stands in for it: ``Stream(device)``, ``stream(s)``, ``current_stream(device)``.
    """

    def __init__(self, device: torch.device, streams: Any) -> None:
        self._device: Final = device
        self._streams = streams
        self._aside: Any = None

    def __call__(self, batch: Any) -> Any:
        """Return the batch on the device; what is queued there from now on sees it whole.

        Cost: no host synchronisation. The memory of a batch is used again once the work on it is done.
        """
        if any(part is None for part in _tensors(batch)):
            return move(batch, self._device)
        if self._aside is None:  # now, not when the run is assembled: the first stream starts the device
            self._aside = self._streams.Stream(self._device)
        work = self._streams.current_stream(self._device)
        with self._streams.stream(self._aside):
            moved = move(batch, self._device)
        work.wait_stream(self._aside)
        for tensor in _tensors(moved):
            if tensor is not None and tensor.device == self._device:
                tensor.record_stream(work)  # or its memory would be given away while the work still reads it
        return moved


def _tensors(batch: Any) -> Iterator[Tensor | None]:
    """Yield every tensor of a batch; None for a part that moves itself and does not show what it holds, as a graph."""
    if isinstance(batch, Tensor):
        yield batch
    elif parts := fields(batch):
        for _, part in parts:
            yield from _tensors(part)
    elif isinstance(batch, Movable):
        yield None
