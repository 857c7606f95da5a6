"""What each component of the production loop costs: lines of code, memory, and time per update with and without.

The plain run has everything off that can be off: no clipping, a constant rate, no average, nothing written. Each other
run switches one thing on. Times are compared within a round; memory is the peak of torch's CPU allocator, counted from
an empty process state to the third update onwards, minus that of the plain run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn
from workloads import Batch

import trueloop
from trueloop import CheckpointConfig, OptimConfig, ScheduleConfig, TrainConfig

PACKAGE = Path(trueloop.__file__).parent
PLAIN = TrainConfig(
    epochs=1, device="cpu", clip=None, optim=OptimConfig(), schedule=ScheduleConfig(name="constant"),
    checkpoint=CheckpointConfig(every_epochs=1000),
)  # fmt: skip
MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """One thing that can be switched on."""

    modules: tuple[str, ...]
    """Files that hold it, below src/trueloop."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Fields of TrainConfig that differ from the plain run."""
    micro_batches: int = 1
    """Pieces each batch is cut into."""
    trainer: Callable[[Workload, Path], dict[str, Any]] = lambda _load, _folder: {}
    """Further arguments of Trainer."""
    val: bool = False
    """Evaluate on as many batches as an epoch trains on."""
    around: Callable[[], Any] | None = None
    """A context the run happens in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A model, its data, and how long to look at it."""

    model: Callable[[], nn.Module]
    batches: list[Batch]
    updates: int
    warm: int
    rounds: int
