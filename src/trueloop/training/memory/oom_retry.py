"""Retry a window that ran out of memory with half the micro-batch; the update stays the same.

The effective batch of a window defines the update; the micro-batch only defines how the window is split. So a window
that did not fit is repeated in smaller micro-batches: gradients are cleared, buffers and random generators are
restored, and the failed attempt has changed nothing else. The new limit is used for the rest of the run and saved with
it.
"""

from __future__ import annotations

import gc
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage]

from trueloop.core.errors import InvalidData, OutOfMemory
from trueloop.core.protocols import MicroBatch
from trueloop.training.distributed.processes import Processes
from trueloop.training.memory.device_memory import format_model_size, is_out_of_memory
from trueloop.training.objective import describe_batch
from trueloop.training.precision.nonfinite_guard import Guard
from trueloop.training.split_batch import count_examples, split_micro_batch
from trueloop.training.window import Window

RunWindow = Callable[[Iterator[MicroBatch]], Window]
"""Function that clears the gradients, then runs forward, loss and backward of every micro-batch."""

REMEDIES: Final = (
    'set recompute = true (stores fewer activations) or precision = "bf16" (halves their size); or use shorter '
    "examples or a smaller model."
)


class RetryNotice(NamedTuple):
    """A window that was retried with a smaller micro-batch."""

    update: int
    before: int
    """Size of the micro-batch that did not fit."""
    after: int
    """Size of the micro-batch from this update on."""
    device: str

    @property
    def message(self) -> str:
        """Return the message to the user."""
        return (
            f"{self.device} ran out of memory in update {self.update} with a micro-batch of {self.before}; from this "
            f"update on, the micro-batch is {self.after}. The update was repeated from its start with its full "
            "effective batch: only rounding and dropout masks differ."
        )

    @property
    def details(self) -> Mapping[str, Any]:
        """Return the numbers, JSON-ready."""
        return {"before": self.before, "after": self.after, "device": self.device}


class OutOfMemoryRetry:
    """Repeats a window with half the micro-batch when it runs out of memory, and remembers the size that fits.

    Args:
        model: the model; if it has a BatchNorm layer in train mode, no window is retried.
        guard: restores the buffers and random generators to their state before the window.
        processes: processes that share each window. Several processes never retry: all would have to do so together.
        device: the run's device.
        enabled: whether to retry; False lets the first failure end the run.
    """

    def __init__(
        self, model: nn.Module, guard: Guard, processes: Processes, device: torch.device, *, enabled: bool
    ) -> None:
        self._model = model
        self._guard = guard
        self._single_process = processes.size == 1
        self._device = device
        self._enabled = enabled
        self._notices: list[RetryNotice] = []
        self.max_micro_batch: int | None = None
        """Largest number of examples in one forward pass; None until a window runs out of memory."""

    def run_window(self, micros: Iterator[MicroBatch], run: RunWindow, *, update: int) -> Window:
        """Return what ``run`` returns for a window, split into pieces that fit in memory.

        Args:
            micros: the window's micro-batches, not yet read.
            run: function that runs a window; after running out of memory it is called again, so it must keep no state.
            update: number of the window's update, from 1.

        Raises:
            OutOfMemory: a single example does not fit, or smaller pieces would change the training.

        Cost: if memory suffices, only a reference to each micro-batch.
        """
        replay = ReplayableWindow(micros)
        failed_size = 0
        while True:
            try:
                window = run(replay.from_start(self.max_micro_batch if self._single_process else None))
            except Exception as error:
                if replay.reading_source or not is_out_of_memory(error):
                    raise
                cause = _clear_frames(error)
            else:
                if failed_size and self.max_micro_batch:
                    self._notices.append(RetryNotice(update, failed_size, self.max_micro_batch, str(self._device)))
                return window
            _release_cache(self._device)
            failed_size = failed_size or replay.largest_piece()
            self._halve(replay, update, cause)
            self._guard.restore()

    def split_batches(self, batches: Iterable[Any]) -> Iterable[Any]:
        """Split evaluation batches to the size that fits in training; a batch that cannot be split stays unsplit."""
        if self.max_micro_batch is None or not self._single_process:
            return batches
        return (piece for batch in batches for piece in _split_if_possible(batch, self.max_micro_batch or 1))

    def drain_notices(self) -> list[RetryNotice]:
        """Return the notices since the last call."""
        notices, self._notices = self._notices, []
        return notices

    def state_dict(self) -> dict[str, int | None]:
        """Return the limit of the micro-batch."""
        return {"max_micro_batch": self.max_micro_batch}

    def load_state_dict(self, state: Mapping[str, int | None]) -> None:
        """Restore a saved limit, so that windows are split as in the uninterrupted run."""
        self.max_micro_batch = state["max_micro_batch"]

    def _halve(self, replay: ReplayableWindow, update: int, cause: str) -> None:
        """Halve the limit of the micro-batch, or raise an error that explains why not."""
        size = replay.largest_piece()
        problem = f"{self._device} ran out of memory in update {update} with a micro-batch of {_format_examples(size)}"
        if size <= 1:
            smallest = describe_batch(split_micro_batch(replay.micro_batches[-1], 1)[0].data)
            raise OutOfMemory(
                f"{problem}, and this batch cannot be split further: {smallest}.",
                why=f"{cause} The model takes {format_model_size(self._model)}; gradients and optimizer need more.",
                fix=REMEDIES,
            )
        fix = f"Set micro_batch lower; or {REMEDIES}"
        if reason := self._reason_not_to_split():
            raise OutOfMemory(f"{problem}.", why=f"{cause} The micro-batch is not halved: {reason}.", fix=fix)
        self.max_micro_batch = -(-size // 2)
        try:
            replay.check_splittable(self.max_micro_batch)
        except InvalidData as error:
            raise OutOfMemory(f"{problem}.", why=f"{cause} {error}", fix=fix) from error

    def _reason_not_to_split(self) -> str:
        """Return why a window must not be split further; "" if it may be."""
        if has_active_batchnorm(self._model):
            return "BatchNorm layers use the statistics of one micro-batch, so a smaller one changes the training"
        if not self._enabled:
            return 'out_of_memory is "stop", which a measurement of the throughput always sets'
        if not self._single_process:
            return "the other processes of this run are in the middle of the same update"
        return ""


def has_active_batchnorm(model: nn.Module) -> bool:
    """Return True if a BatchNorm layer is in train mode, so that the training depends on the split of the batch."""
    return any(isinstance(module, _BatchNorm) and module.training for module in model.modules())


class ReplayableWindow:
    """The micro-batches of one window, which can be replayed in smaller pieces."""

    def __init__(self, micros: Iterator[MicroBatch]) -> None:
        self._source = micros
        self._max_examples: int | None = None
        self.micro_batches: list[MicroBatch] = []
        self.reading_source = False
        """True while the source is read: an error then ends the stream, so the window cannot be replayed."""

    def from_start(self, max_examples: int | None) -> Iterator[MicroBatch]:
        """Yield the micro-batches read so far, then the rest, split to at most ``max_examples``."""
        self._max_examples = max_examples
        for micro in tuple(self.micro_batches):
            yield from self._split(micro)
        while (micro := self._read_next()) is not None:
            self.micro_batches.append(micro)
            yield from self._split(micro)

    def _read_next(self) -> MicroBatch | None:
        self.reading_source = True
        micro = next(self._source, None)
        self.reading_source = False
        return micro

    def largest_piece(self) -> int:
        """Return the number of examples in the largest piece of a micro-batch so far."""
        largest = max(map(count_examples, self.micro_batches))
        return min(largest, self._max_examples or largest)

    def check_splittable(self, max_examples: int) -> None:
        """Check that every micro-batch so far can be split.

        Raises:
            InvalidData: a micro-batch cannot be split into pieces of at most ``max_examples``.
        """
        for micro in self.micro_batches:
            split_micro_batch(micro, max_examples)

    def _split(self, micro: MicroBatch) -> list[MicroBatch]:
        return [micro] if self._max_examples is None else _split_if_possible(micro, self._max_examples)


def _split_if_possible(batch: Any, max_examples: int) -> list[MicroBatch]:
    """Split a batch; return it unsplit if it cannot be split, because it may still fit."""
    micro = batch if isinstance(batch, MicroBatch) else MicroBatch(batch, closes_window=True, indices=None)
    try:
        return split_micro_batch(micro, max_examples)
    except InvalidData:
        return [micro]


def _clear_frames(error: Exception) -> str:
    """Clear an error's frames, which refer to the graph of the forward pass; return the first line of its message."""
    cause = str(error).partition("\n")[0].rstrip(".")
    exception: BaseException | None = error
    while exception is not None:
        traceback.clear_frames(exception.__traceback__)
        exception = exception.__cause__ or exception.__context__
    return f"PyTorch's message: {cause}."


def _release_cache(device: torch.device) -> None:
    gc.collect()  # an exception and the frame that refers to it are a reference cycle
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()


def _format_examples(size: int) -> str:
    return "1 example" if size == 1 else f"{size} examples"
