"""Train on a few batches twice, to check that the loss falls."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from time import perf_counter

from trueloop.core.errors import InvalidModel
from trueloop.core.protocols import BatchSource, MicroBatch
from trueloop.training.compiled.compiled_loop import train_epoch
from trueloop.training.loop import Assembly

_WINDOWS = 5  # twice 5 windows are 10 updates: enough to see a trend, in a second or two on any machine


@dataclass(frozen=True, slots=True, kw_only=True)
class SmokeResult:
    """Losses of the smoke test."""

    first_pass: tuple[float, ...]
    """Loss of each window in the first pass."""
    second_pass: tuple[float, ...]
    """Loss of the same windows in the second pass."""
    seconds: float

    @property
    def loss_decrease(self) -> float:
        """Decrease of the mean loss from the first pass to the second, as a share of the first."""
        before, after = (sum(part) / len(part) for part in (self.first_pass, self.second_pass))
        return (before - after) / abs(before) if before else 0.0


def run_smoke_test(parts: Assembly, source: BatchSource) -> SmokeResult:
    """Train on the first five windows twice and compare the mean losses.

    Args:
        parts: an assembled run with a constant schedule; its weights change.
        source: training data.

    Raises:
        InvalidModel: the mean loss did not fall, or is not finite; the message has the losses.
    """
    few, started = _FirstWindows(source), perf_counter()
    passes: list[tuple[float, ...]] = []
    for repetition in (0, 1):
        results = train_epoch(parts, few.epoch(0), update=repetition * _WINDOWS)
        passes.append(tuple(float(result.loss) for result in results))
    result = SmokeResult(first_pass=passes[0], second_pass=passes[1], seconds=perf_counter() - started)
    first = result.first_pass
    if not (result.loss_decrease > 0 and math.isfinite(result.loss_decrease)):
        raise InvalidModel(
            f"The loss does not fall: {_format_losses(first)} on the first {len(first)} batches, "
            f"{_format_losses(result.second_pass)} on the same batches in a second pass.",
            why="A model that does not improve on batches that it has just seen will not improve on others.",
            fix="Check the learning rate, the loss, the targets, and which parameters are frozen.",
        )
    return result


def _format_losses(losses: tuple[float, ...]) -> str:
    return ", ".join(f"{loss:.4g}" for loss in losses)


class _FirstWindows:
    """A source whose every epoch consists of the first windows of the first epoch."""

    def __init__(self, source: BatchSource) -> None:
        self._source = source

    @property
    def updates_per_epoch(self) -> int:
        return _WINDOWS

    def epoch(self, epoch: int, skip_updates: int = 0) -> Iterator[MicroBatch]:
        closed = 0

        def is_in_first_windows(micro: MicroBatch) -> bool:
            nonlocal closed
            if closed == _WINDOWS:
                return False
            closed += micro.closes_window
            return True

        return takewhile(is_in_first_windows, self._source.epoch(0, skip_updates))
