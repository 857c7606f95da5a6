"""Traces the order in which the samplers of shuffling loaders draw samples."""

from collections.abc import Callable
from typing import Any, ClassVar, Final, cast

import torch.utils.data.dataloader as torch_loader

from trueloop.failures.data.order_repeated import MIN_INDICES, IndicesDrawn
from trueloop.tracing.attach import Hook
from trueloop.tracing.events import Event
from trueloop.tracing.hooks.loaders import ITERATOR_KEY
from trueloop.tracing.loader_pass import LoaderPass
from trueloop.tracing.patch import Patches
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.stream import EventStream


class SampleOrders(Hook):
    """Emits `IndicesDrawn` for the first batches of each epoch that begins during full tracing."""

    emits: ClassVar[tuple[type[Event], ...]] = (IndicesDrawn,)

    def __init__(self, stream: EventStream, program: ProgramState) -> None:
        self._stream, self._program = stream, program
        self._report = stream.isolated("the order of samples", self._on_indices)

    def install_always(self, patches: Patches) -> None:
        """Replace the method of the loader's iterators that draws the indices of a batch."""
        patches.replace(cast("Any", torch_loader)._BaseDataLoaderIter, "_next_index", self._replacement)  # noqa: SLF001

    def _replacement(self, original: Callable[..., Any]) -> Callable[..., Any]:
        stream, program = self._stream, self._program

        def _next_index(iterator: Any) -> Any:
            indices = original(iterator)
            if stream.active:
                current = program.starting_pass or getattr(iterator, ITERATOR_KEY, None)
                if current is not None and current.shuffles:
                    before = current.drawn
                    is_started = before[1] or (stream.full_tracing and not current.index)
                    if is_started and (before[0] < MIN_INDICES or before[1] < 2):
                        self._report(current, before, indices)
            return indices

        return _next_index

    def _on_indices(self, current: LoaderPass, before: tuple[int, int], indices: Any) -> None:
        several = cast("list[Any]", indices if isinstance(indices, list | tuple) else [indices])
        if set(map(type, several)) == {int}:  # not keys, tensors or pairs, which are not compared
            current.drawn = before[0] + len(several), before[1] + 1
            self._stream.emit(IndicesDrawn(loader=current.loader, epoch=current.epoch, indices=several))


HOOK: Final = SampleOrders
