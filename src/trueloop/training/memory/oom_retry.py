"""Where the memory runs out on a window, its micro-batch is halved and the window done again: the update stays.

The effective batch says what an update is, the micro-batch only cuts it up (`window`). So a window that did not fit is
begun anew in smaller pieces: gradients are cleared, buffers and random generators put back to where they were before
it, and nothing of it has been trained on. The limit holds for the rest of the run and is saved with it.
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
from trueloop.training.memory.device_memory import is_out_of_memory, taken_by
from trueloop.training.objective import describe
from trueloop.training.precision.nonfinite_guard import Guard
from trueloop.training.split_batch import rows, split
from trueloop.training.window import Window

Gather = Callable[[Iterator[MicroBatch]], Window]
"""Clears the gradients, and runs forward, loss and backward of every micro-batch."""

REMEDIES: Final = (
    'recompute = true keeps less of every block, precision = "bf16" halves what is kept; else shorter examples or '
    "a smaller model."
)


class Halved(NamedTuple):
    """What to tell of a window that did not fit."""

    update: int
    before: int
    """Examples at a time that did not fit."""
    after: int
    device: str

    @property
    def message(self) -> str:
        """Return it as a sentence for people."""
        return (
            f"The memory of {self.device} ran out in update {self.update} on {self.before} examples at a time; from "
            f"here on they go through {self.after} at a time. The update was done anew from its start, with its whole "
            "effective batch: only rounding differs, and the masks of dropout."
        )

    @property
    def details(self) -> Mapping[str, Any]:
        """Return the numbers, JSON-ready."""
        return {"before": self.before, "after": self.after, "device": self.device}


class Halving:
    """The largest micro-batch that has been found to fit.

    Args:
        model: whose windows are done again; one with batch normalisation in train mode is not, see `_obstacle`.
        guard: remembers buffers and generators.
        processes: those that share each window. Several never cut theirs anew: they have to agree on every pass.
        device: whose memory it is.
        enabled: False lets the first failure end the run.
    """

    def __init__(
        self, model: nn.Module, guard: Guard, processes: Processes, device: torch.device, *, enabled: bool
    ) -> None:
        self._model = model
        self._guard = guard
        self._alone = processes.size == 1
        self._device = device
        self._enabled = enabled
        self._told: list[Halved] = []
        self.most: int | None = None
        """Examples that go through the model at a time; None while whatever came did fit."""

    def whole(self, micros: Iterator[MicroBatch], gather: Gather, *, update: int) -> Window:
        """Return what ``gather`` makes of a window, in pieces that fit.

        Args:
            micros: the window's micro-batches, not yet drawn.
            gather: called again from the start of the window where the memory ran out; keeps nothing.
            update: the number of the update the window is for, from 1.

        Raises:
            OutOfMemory: a single example does not fit, or smaller pieces would not be the same run.

        Cost: nothing but a reference to each micro-batch, where there is memory enough.
        """
        pieces = _Pieces(micros)
        first = 0
        while True:
            try:
                window = gather(pieces.from_start(self.most if self._alone else None))
            except Exception as error:
                if pieces.drawing or not is_out_of_memory(error):
                    raise
                said = _let_go(error)
            else:
                if first and self.most:
                    self._told.append(Halved(update, first, self.most, str(self._device)))
                return window
            _release(self._device)
            first = first or pieces.largest()
            self._halve(pieces, update, said)
            self._guard.restore()

    def cut(self, batches: Iterable[Any]) -> Iterable[Any]:
        """Return batches to evaluate on in pieces of what fitted in training; whole where they cannot be cut."""
        if self.most is None or not self._alone:
            return batches
        return (piece for batch in batches for piece in _pieces(batch, self.most or 1))

    def take(self) -> list[Halved]:
        """Return what has not been told yet."""
        told, self._told = self._told, []
        return told

    def state_dict(self) -> dict[str, int | None]:
        """Return the limit."""
        return {"most": self.most}

    def load_state_dict(self, state: Mapping[str, int | None]) -> None:
        """Go on with a saved limit, so that the cuts stay those of the undisturbed run."""
        self.most = state["most"]

    def _halve(self, pieces: _Pieces, update: int, said: str) -> None:
        """Set a smaller limit, or end the run in words."""
        size = pieces.largest()
        what = f"The memory of {self._device} ran out in update {update} on {_examples(size)} at a time"
        if size <= 1:
            taken = taken_by(self._model)
            raise OutOfMemory(
                f"{what}, which is all there is to cut up: {describe(split(pieces.drawn[-1], 1)[0].data)}.",
                why=f"{said} The model's own tensors take {taken}; gradients and the optimizer come on top.",
                fix=REMEDIES,
            )
        if obstacle := self._obstacle():
            raise OutOfMemory(
                f"{what}.", why=f"{said} It is not halved: {obstacle}.", fix=f"Set micro_batch lower; or {REMEDIES}"
            )
        self.most = -(-size // 2)
        try:
            pieces.check(self.most)
        except InvalidData as uncut:
            raise OutOfMemory(f"{what}.", why=f"{said} {uncut}", fix=f"Set micro_batch lower; or {REMEDIES}") from uncut

    def _obstacle(self) -> str:
        """Say why smaller pieces would not be the same run; "" where they are."""
        if normalises_batches(self._model):
            return "batch normalisation sees one micro-batch at a time, so a smaller one learns otherwise"
        if not self._enabled:
            return 'out_of_memory is "stop", as it always is where the pace is measured'
        if not self._alone:
            return "the other processes of this run are in the midst of the same update"
        return ""


def normalises_batches(model: nn.Module) -> bool:
    """Return True where a layer's output depends on which examples go through it together."""
    return any(isinstance(module, _BatchNorm) and module.training for module in model.modules())


class _Pieces:
    """The micro-batches of one window, which can be gone through again in smaller pieces."""

    def __init__(self, micros: Iterator[MicroBatch]) -> None:
        self._micros = micros
        self._most: int | None = None
        self.drawn: list[MicroBatch] = []
        self.drawing = False
        """True while the source is asked: what it raises ends its stream, and the window cannot be had again."""

    def from_start(self, most: int | None) -> Iterator[MicroBatch]:
        """Yield those drawn already, then the rest."""
        self._most = most
        for micro in tuple(self.drawn):
            yield from self._cut(micro)
        while (micro := self._next()) is not None:
            self.drawn.append(micro)
            yield from self._cut(micro)

    def _next(self) -> MicroBatch | None:
        self.drawing = True
        micro = next(self._micros, None)
        self.drawing = False
        return micro

    def largest(self) -> int:
        """Return the examples in the largest piece so far."""
        return max(min(rows(micro), self._most or rows(micro)) for micro in self.drawn)

    def check(self, most: int) -> None:
        """Raise where one of them cannot be cut so."""
        for micro in self.drawn:
            split(micro, most)

    def _cut(self, micro: MicroBatch) -> list[MicroBatch]:
        return [micro] if self._most is None else _pieces(micro, self._most)


def _pieces(batch: Any, most: int) -> list[MicroBatch]:
    """Cut a batch; one that cannot be cut stays whole, as it may fit all the same."""
    micro = batch if isinstance(batch, MicroBatch) else MicroBatch(batch, closes_window=True, indices=None)
    try:
        return split(micro, most)
    except InvalidData:
        return [micro]


def _let_go(error: Exception) -> str:
    """Drop what the frames of a failure hold, which is the graph of the forward pass; return its first line."""
    said = str(error).partition("\n")[0].rstrip(".")
    link: BaseException | None = error
    while link is not None:
        traceback.clear_frames(link.__traceback__)
        link = link.__cause__ or link.__context__
    return f"torch said: {said}."


def _release(device: torch.device) -> None:
    gc.collect()  # a frame that keeps its own exception is a ring, which only this breaks
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()


def _examples(size: int) -> str:
    return "1 example" if size == 1 else f"{size} examples"
