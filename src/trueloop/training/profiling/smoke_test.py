"""Train on a few batches twice, to check that the loss falls."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter

from trueloop.core.errors import InvalidModel
from trueloop.core.protocols import BatchSource, MicroBatch
from trueloop.training.compiled.compiled_loop import train_epoch
from trueloop.training.loop import Assembly

_WINDOWS = 5  # two passes are 10 updates: enough to see a trend, in a second or two on any machine


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
        first_mean, second_mean = (sum(part) / len(part) for part in (self.first_pass, self.second_pass))
        return (first_mean - second_mean) / abs(first_mean) if first_mean else 0.0


def run_smoke_test(assembly: Assembly, source: BatchSource) -> SmokeResult:
    """Train on the first five windows twice and compare the mean losses.

    Args:
        assembly: an assembled run with a constant schedule; its weights change.
        source: training data.

    Raises:
        InvalidModel: the mean loss did not fall, or is not finite; the message lists the losses.
    """
    first_windows, started = _FirstWindows(source), perf_counter()
    passes: list[tuple[float, ...]] = []
    for repetition in (0, 1):
        results = train_epoch(assembly, first_windows.epoch(0), update=repetition * _WINDOWS)
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
        closed_windows = 0
        for micro in self._source.epoch(0, skip_updates):
            yield micro
            closed_windows += micro.closes_window
            if closed_windows == _WINDOWS:
                return
