"""Protocols between packages: batch sources that feed the training loop, and reporters that receive its events.

A window is the K micro-batches between two optimizer updates.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable


class MicroBatch(NamedTuple):
    """One batch from the loader, and its role in the window."""

    data: Any
    """The batch as the loader returns it: a tuple, a mapping or a tensor, on the CPU."""
    closes_window: bool
    """True for the last micro-batch of a window: the update follows."""
    indices: Sequence[int] | None
    """The dataset indices in this batch, used in error messages; None if the loader does not provide them; empty for
    padding (`is_padding`)."""


def is_padding(micro: MicroBatch) -> bool:
    """Return True if this process has no share of the micro-batch, so that ``data`` must not be counted.

    The data are then samples of another process, so that the model runs equally often on every process.
    """
    return micro.indices is not None and not len(micro.indices)


class BatchSource(Protocol):
    """Micro-batches of successive epochs, grouped into windows; any epoch and window can be requested."""

    @property
    def updates_per_epoch(self) -> int | None:
        """Number of windows in one epoch; None for a stream of unknown length."""
        ...

    def epoch(self, epoch: int, skip_updates: int = 0) -> Iterator[MicroBatch]:
        """Yield the micro-batches of one epoch, in order.

        Args:
            epoch: index of the epoch, from 0.
            skip_updates: number of windows of this epoch that were trained on already and are not read again.
        """
        ...


@runtime_checkable
class StatefulOrder(Protocol):
    """A `BatchSource` whose order depends on random generators, not only on the epoch number."""

    def order_state(self) -> Any:
        """Return the state of the source's own generators, as tensors and numbers."""
        ...

    def load_order_state(self, state: Any) -> None:
        """Restore the state of the generators."""
        ...


@runtime_checkable
class StatefulPosition(Protocol):
    """A `BatchSource` that saves its position, because skipping windows would mean reading them again."""

    def position_state(self) -> Any:
        """Return the position after the last window read, as plain data; None if skipping windows can reach it."""
        ...

    def load_position_state(self, state: Any) -> None:
        """Restore a position: the next call of ``epoch`` starts there."""
        ...


class UpdateRow(NamedTuple):
    """One optimizer update as written to the journal."""

    update: int
    """Number of the update in the whole run, from 1."""
    epoch: int
    """Number of the epoch, from 1."""
    loss: float
    """Loss of the window: the sum of its losses divided by their count."""
    grad_norm: float
    """L2 norm of the window's gradient over all parameters, before clipping."""
    lr: float
    """Learning rate of the first parameter group in this update."""
    examples: int
    """Number of examples in the window."""
    wait_s: float
    """Seconds spent waiting for data."""
    total_s: float
    """Seconds from requesting this window's data to the end of its update, without saving and evaluating."""
    skipped: bool
    """True if the gradient was not finite and the optimizer did not step."""
    rates: Sequence[float] = ()
    """Learning rates of all parameter groups; empty if they are equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    """The run is assembled and about to read its first batch."""

    name: str
    epochs: int
    updates: int | None
    """Number of updates in the whole run; None if the length of the data is unknown."""
    start_update: int
    """Number of updates made before this run resumed; 0 for a new run."""
    facts: Mapping[str, Any]
    """Description, ready for JSON: settings, model size, device, data sizes, versions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdatesDone:
    """A batch of finished updates, reported together so that the loop does not wait."""

    rows: Sequence[UpdateRow]
    memory_mib: float | None = None
    """MiB of tensors on the CUDA device, else of the process, after the last row; sampled."""
    layers: Mapping[str, float] | None = None
    """Gradient norm of each layer in the last row, before clipping; sampled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """Result of one pass over a held-out set or the training set."""

    update: int
    epoch: int
    split: str
    """"val" or "test"."""
    metrics: Mapping[str, float]
    """Means over all examples, by name: {"loss": 0.1, "accuracy": 0.97}."""
    tables: Mapping[str, Any]
    """Results that are more than one number, ready for JSON: {"confusion": [[...], ...]}."""
    seconds: float
    best: bool
    """True if this is the best value of the monitored metric so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSaved:
    """A checkpoint is complete on disk."""

    update: int
    epoch: int
    path: str
    metrics: Mapping[str, float]
    """Metrics of the latest evaluation: {"val/loss": 0.1}."""
    seconds: float
    """Seconds from the end of the update until the checkpoint was complete."""
    blocked_s: float = 0.0
    """Seconds of the save during which training waited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """A message for the user, for example about a skipped update or an early stop."""

    update: int
    kind: str
    """A stable identifier: "not_finite", "early_stop", "interrupted", "preempted", "smoke", "resumed",
    "resumed_inexact", "resumed_changed", "rolled_back", "compiled", "compiled_in_part", "out_of_memory",
    "save_blocking", "mirror_down", "store_down", "store_behind",
    or "finding": the sanitizer found a failure, and ``details`` are its finding as in the report's JSON."""
    message: str
    details: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded:
    """The run is over and everything is on disk."""

    update: int
    reason: str
    """"finished", "early_stop", "interrupted", "preempted" or "failed"."""
    seconds: float
    peak_memory_mib: float | None = None
    """Peak memory of tensors on the CUDA device, else of the process; None if unknown."""


RunEvent = RunStarted | UpdatesDone | Evaluated | CheckpointSaved | Notice | RunEnded


class Reporter(Protocol):
    """Receives the events of a run, and never changes the run."""

    def report(self, event: RunEvent) -> None:
        """Receive one event; called on the training thread, so it must return quickly."""
        ...

    def close(self) -> None:
        """Flush and release resources, also after an error."""
        ...
