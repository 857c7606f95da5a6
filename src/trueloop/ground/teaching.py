"""The teaching loop: a training loop taken apart, so that each operation can be shown, stepped through or broken.

It knows no torch: `trueloop.engines.teach` fills it with a real model. A failure's ``inject`` replaces one field.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol


class Operation(StrEnum):
    """What the loop does, one thing at a time."""

    FORWARD = "forward"
    LOSS = "loss"
    BACKWARD = "backward"
    CLIP = "clip"
    UPDATE = "update"
    SCHEDULE = "schedule"
    CLEAR = "clear"
    EVALUATE = "evaluate"


class Batches(Protocol):
    """Batches of one epoch: a DataLoader, a list."""

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        """Yield (inputs, targets)."""
        ...

    def __len__(self) -> int:
        """Return how many there are."""
        ...


def _nothing() -> None:
    """Do nothing, in the place of an operation that is left out."""


@dataclass(slots=True, kw_only=True)
class TeachingLoop:
    """Every operation of training as a field; the defaults of `run` put them in their right order."""

    model: Any
    optimizer: Any
    epochs: int
    window: int
    """Batches per update."""
    batches: Callable[[int], Batches]
    """Epoch -> its (inputs, targets)."""
    held_out: Callable[[], Iterable[tuple[Any, Any]]]
    train_mode: Callable[[], None]
    """At the beginning of an epoch, and after each evaluation."""
    forward: Callable[[Any], Any]
    """Inputs -> outputs."""
    loss: Callable[[Any, Any], Any]
    """Outputs, targets -> the mean over the batch."""
    share: Callable[[Any, int], Any]
    """A batch's loss, batches in its window -> what of it goes into backward."""
    backward: Callable[[Any], None]
    operations: dict[Operation, Callable[[], None]]
    """CLIP, UPDATE, SCHEDULE, CLEAR."""
    after_window: list[Operation] = field(
        default_factory=lambda: [Operation.CLIP, Operation.UPDATE, Operation.SCHEDULE, Operation.CLEAR]
    )
    """In this order, when a window is full."""
    after_batch: list[Operation] = field(default_factory=list[Operation])
    """After every backward, whether the window is full or not."""
    step_short_window: bool = True
    """Update with the last window of an epoch too, if the data end before it is full."""
    keep: Callable[[Any], Any] = field(default=lambda loss: loss)
    """What is kept of a batch's loss in ``history``."""
    evaluate: Callable[[TeachingLoop], float] = field(default=lambda loop: 0.0)
    """A number for the held-out data."""
    history: list[Any] = field(default_factory=list[Any])
    evaluations: list[float] = field(default_factory=list[float])

    def leave_out(self, operation: Operation) -> None:
        """Forget one operation, as people do."""
        self.operations[operation] = _nothing

    def run(self) -> Iterator[Operation]:
        """Train, and yield after every operation."""
        for epoch in range(self.epochs):
            self.train_mode()
            for batch, size, closes in self._windows(self.batches(epoch)):
                yield from self._batch(batch, size)
                if closes:
                    yield from self._do(self.after_window)
            self.evaluations.append(self.evaluate(self))
            yield Operation.EVALUATE

    def _batch(self, batch: tuple[Any, Any], size: int) -> Iterator[Operation]:
        inputs, targets = batch
        outputs = self.forward(inputs)
        yield Operation.FORWARD
        loss = self.loss(outputs, targets)
        yield Operation.LOSS
        self.history.append(self.keep(loss))
        self.backward(self.share(loss, size))
        yield Operation.BACKWARD
        yield from self._do(self.after_batch)

    def _do(self, operations: list[Operation]) -> Iterator[Operation]:
        for operation in operations:
            self.operations[operation]()
            yield operation

    def _windows(self, batches: Batches) -> Iterator[tuple[Any, int, bool]]:
        """Yield (batch, batches in its window, whether it closes it)."""
        total = len(batches)
        last = total % self.window
        for place, batch in enumerate(batches):
            short = place >= total - last
            full = (place + 1) % self.window == 0
            ends = place + 1 == total
            yield batch, last if short else self.window, full or (ends and self.step_short_window)
