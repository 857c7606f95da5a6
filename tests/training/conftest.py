"""Small data, and fixtures that assemble a run."""

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


class WindowedTensors:
    """A simple BatchSource: tensors split in order into windows of E and micro-batches of B."""

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
    """A reporter that stores all events."""

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
def windowed() -> type[WindowedTensors]:
    return WindowedTensors


@pytest.fixture
def reporter() -> RecordingReporter:
    return RecordingReporter()


@pytest.fixture(scope="session")
def build():
    """Return a function that assembles the parts of a run from model, objective and settings."""

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
