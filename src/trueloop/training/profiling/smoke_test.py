"""Train on a few batches twice, to see whether the model learns at all."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from time import perf_counter

from trueloop.core.errors import InvalidModel
from trueloop.core.protocols import BatchSource, MicroBatch
from trueloop.training.compiled.compiled_loop import train_epoch
from trueloop.training.loop import Assembly

_WINDOWS = 5  # 5 batches seen twice are 10 updates: enough for a trend, a second or two on any machine


@dataclass(frozen=True, slots=True, kw_only=True)
class SmokeResult:
    """Losses of the smoke test."""

    first_pass: tuple[float, ...]
    """Loss of each batch when first seen."""
    second_pass: tuple[float, ...]
    """Loss of the same batches when seen again."""
    seconds: float

    @property
    def loss_decrease(self) -> float:
        """Share by which the mean loss fell from the first pass to the second."""
        before, after = (sum(part) / len(part) for part in (self.first_pass, self.second_pass))
        return (before - after) / abs(before) if before else 0.0


def run_smoke_test(parts: Assembly, source: BatchSource) -> SmokeResult:
    """Train on the first five windows twice and compare each batch's losses.

    Args:
        parts: an assembled run with a constant schedule; its weights are changed.
        source: training data.

    Raises:
        InvalidModel: the mean loss did not fall, or is not finite, with the losses.
    """
    few, started = _FirstWindows(source), perf_counter()
    passes: list[tuple[float, ...]] = []
    for again in (0, 1):
        done = train_epoch(parts, few.epoch(0), update=again * _WINDOWS)
        passes.append(tuple(float(step.loss) for step in done))
    result = SmokeResult(first_pass=passes[0], second_pass=passes[1], seconds=perf_counter() - started)
    first = result.first_pass
    if not (result.loss_decrease > 0 and math.isfinite(result.loss_decrease)):
        raise InvalidModel(
            f"The loss does not fall: {_format_losses(first)} on the first {len(first)} batches, "
            f"{_format_losses(result.second_pass)} on the same ones seen again.",
            why="A run that cannot improve on batches it has just seen will not improve on others.",
            fix="Check the learning rate, the loss and its target, and what is frozen.",
        )
    return result


def _format_losses(losses: tuple[float, ...]) -> str:
    return ", ".join(f"{loss:.4g}" for loss in losses)


class _FirstWindows:
    """The first windows of the first epoch, repeatedly."""

    def __init__(self, source: BatchSource) -> None:
        self._source = source

    @property
    def updates_per_epoch(self) -> int:
        return _WINDOWS

    def epoch(self, epoch: int, skip_updates: int = 0) -> Iterator[MicroBatch]:
        closed = 0

        def wanted(micro: MicroBatch) -> bool:
            nonlocal closed
            if closed == _WINDOWS:
                return False
            closed += micro.closes_window
            return True

        return takewhile(wanted, self._source.epoch(0, skip_updates))
