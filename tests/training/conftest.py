"""Small data and the shortest way from a model to an assembled run."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from trueloop.core.protocols import MicroBatch, RunEvent
from trueloop.training.assemble import UserComponents, assemble
from trueloop.training.config import TrainConfig
from trueloop.training.loop import Assembly

CPU = torch.device("cpu")


class Cut:
    """Tensors cut into windows of E and micro-batches of B, in order: the plainest possible BatchSource."""

    def __init__(self, *tensors: Tensor, effective: int, micro: int | None = None) -> None:
        self.tensors = tensors
        self.effective = effective
        self.micro = micro or effective

    @property
    def updates_per_epoch(self) -> int:
        return math.ceil(len(self.tensors[0]) / self.effective)

    def epoch(self, epoch: int, skip_updates: int = 0) -> Iterator[MicroBatch]:
        size = len(self.tensors[0])
        for start in range(skip_updates * self.effective, size, self.effective):
            end = min(start + self.effective, size)
            for low in range(start, end, self.micro):
                high = min(low + self.micro, end)
                yield MicroBatch(tuple(t[low:high] for t in self.tensors), high == end, tuple(range(low, high)))


class RecordingReporter:
    """A reporter that remembers."""

    def __init__(self) -> None:
        self.events: list[RunEvent] = []
        self.closed = False

    def report(self, event: RunEvent) -> None:
        self.events.append(event)

    def close(self) -> None:
        self.closed = True

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


@pytest.fixture(scope="session")
def cut() -> type[Cut]:
    return Cut


@pytest.fixture
def reporter() -> RecordingReporter:
    return RecordingReporter()


@pytest.fixture(scope="session")
def build():
    """Model, objective and settings in, assembled parts out."""

    def make(
        model: nn.Module, objective: Any, config: TrainConfig, updates_per_epoch: int = 4, **given: Any
    ) -> Assembly:
        return assemble(
            model,
            objective,
            config,
            device=CPU,
            updates_per_epoch=updates_per_epoch,
            components=UserComponents(**given),
        )

    return make
