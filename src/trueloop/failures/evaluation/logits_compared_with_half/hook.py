"""Finds comparisons of a model's logits with numbers, during full tracing."""

from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Final

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from trueloop.core.findings import CodePosition
from trueloop.failures.evaluation.logits_compared_with_half import HALF, LogitsCompared
from trueloop.tracing.attach import Hook
from trueloop.tracing.events import Event, LossGraphRead, ModelCalled, Ref
from trueloop.tracing.hooks.module_calls import tensors_in
from trueloop.tracing.losses import MAX_READ
from trueloop.tracing.patch import Patches
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.row_digests import has_storage
from trueloop.tracing.stream import EventStream
from trueloop.tracing.user_location import user_location

MAX_OUTPUTS: Final = 8  # latest outputs of models
MAX_READS: Final = 8  # comparisons of one line with one number
MAX_PLACES: Final = 64
_COMPARISONS: Final = tuple(f"{mark}{name}{mark}" for name in ("gt", "ge", "lt", "le") for mark in ("", "__"))

Output = tuple[Ref, int]
"""A model and the position of one tensor in its output."""


class ComparedLogits(Hook):
    """Emits `LogitsCompared`.

    Cost: 3 us for each traced model call, 0.3 us for each comparison with a number; 30 us for those of logits.
    """

    emits: ClassVar[tuple[type[Event], ...]] = (LogitsCompared,)

    def __init__(self, stream: EventStream, program: ProgramState) -> None:
        self._stream, self._program = stream, program
        self._outputs = deque[tuple[Output, StorageWeakRef, int]](maxlen=MAX_OUTPUTS)
        """The latest outputs with their memory, which this does not keep, and the number of their values."""
        self._logits = set[Output]()
        """Outputs for which a loss that takes logits was computed."""
        self._reads = Counter[tuple[CodePosition | None, float]]()
        self._record = stream.isolated_inner("outputs that are compared", self._on_event)
        self._compare = stream.isolated("compared logits", self._on_compared)

    def install_always(self, patches: Patches) -> None:
        """Receive model calls, losses and comparisons."""
        for known in (self._outputs, self._logits, self._reads):
            known.clear()
        for name in _COMPARISONS:
            patches.replace(Tensor, name, self._comparison)
        for owner in (Tensor, torch):
            patches.replace(owner, "round", self._rounding)
        self._stream.subscribe(self._record, ModelCalled, LossGraphRead)
        patches.add_undo(partial(self._stream.unsubscribe, self._record))

    def _on_event(self, event: ModelCalled | LossGraphRead) -> None:
        if isinstance(event, LossGraphRead):
            answers = [each.answers for each in event.live_losses if each.kind == "bce_with_logits"]
            self._logits.update(found for each in answers if (found := self._output(each)) is not None)
            return
        if not (self._logits or event.has_graph) or torch.jit.is_tracing():
            return
        for index, each in enumerate(tensors_in(event.output)):
            if has_storage(each) and ((event.model, index) in self._logits or event.has_graph):
                self._outputs.append(((event.model, index), StorageWeakRef(each.untyped_storage()), each.numel()))

    def _output(self, tensor: Tensor) -> Output | None:
        """Return the output of which a tensor has all values, in the same memory."""
        memory = tensor.untyped_storage()._cdata  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        found = [each for each in self._outputs if each[1].cdata == memory and each[2] == tensor.numel()]
        return found[-1][0] if found and not found[-1][1].expired() else None

    def _comparison(self, original: Callable[..., Any]) -> Callable[..., Any]:
        stream, compare, logits = self._stream, self._compare, self._logits

        def compared(tensor: Any, other: Any, *args: Any, **options: Any) -> Any:
            if logits and type(other) is float and stream.active and type(tensor) is Tensor:
                compare(tensor, other)
            return original(tensor, other, *args, **options)

        return compared

    def _rounding(self, original: Callable[..., Any]) -> Callable[..., Any]:
        stream, compare, logits = self._stream, self._compare, self._logits

        def rounded(tensor: Any, *args: Any, **options: Any) -> Any:
            if logits and not args and not options and stream.active and type(tensor) is Tensor:
                compare(tensor, HALF)
            return original(tensor, *args, **options)

        return rounded

    def _on_compared(self, tensor: Tensor, number: float) -> None:
        if self._program.is_other_thread() or not tensor.is_cpu or not has_storage(tensor) or not tensor.numel():
            return
        output = self._output(tensor)
        place = user_location(), number
        if output is None or output not in self._logits or self._reads[place] >= MAX_READS:
            return
        low, high = map(float, torch.aminmax(tensor.detach().flatten()[:MAX_READ]))
        self._reads[place] += 1
        if (low < 0 or high > 1) and len(self._reads) <= MAX_PLACES:  # a model may return probabilities in eval mode
            self._reads[place] = MAX_READS
            self._stream.emit(LogitsCompared(location=place[0], model=output[0], number=number, values=(low, high)))


HOOK: Final = ComparedLogits
