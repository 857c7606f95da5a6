"""Protocols between packages: batch sources that feed the training loop, and reporters that receive its events.

A window is the K micro-batches between two optimizer updates.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable


class MicroBatch(NamedTuple):
    """One batch as the loader yielded it, and its place in the window."""

    data: Any
    """Whatever the loader yielded: a tuple, a mapping, a tensor; still on the host."""
    closes_window: bool
    """True on the window's last micro-batch: the update follows."""
    indices: Sequence[int] | None
    """The dataset indices in this batch, to name a culprit; None where the loader does not provide them; empty for
    padding (`is_padding`)."""


def is_padding(micro: MicroBatch) -> bool:
    """Return True where this process has no share of the micro-batch, so that nothing in ``data`` counts.

    The data are samples of another process's share, so that the model runs equally often on every process.
    """
    return micro.indices is not None and not len(micro.indices)


class BatchSource(Protocol):
    """Micro-batches of one epoch after another, cut into windows; any position can be reached."""

    @property
    def updates_per_epoch(self) -> int | None:
        """Windows in one epoch; None for a stream of unknown length."""
        ...

    def epoch(self, epoch: int, skip_updates: int = 0) -> Iterator[MicroBatch]:
        """Yield the micro-batches of one epoch, in order.

        Args:
            epoch: counted from 0.
            skip_updates: windows of this epoch that are already trained on and are not read again.
        """
        ...


@runtime_checkable
class StatefulOrder(Protocol):
    """A `BatchSource` whose order depends on random generators, not only on the epoch number."""

    def order_state(self) -> Any:
        """Return the state of the source's own generators, as tensors and numbers."""
        ...

    def load_order_state(self, state: Any) -> None:
        """Restore the generators."""
        ...


@runtime_checkable
class StatefulPosition(Protocol):
    """A `BatchSource` that saves its position, because skipping windows would mean reading them again."""

    def position_state(self) -> Any:
        """Return the position after the last window read, as plain data; None where skipping windows reaches it."""
        ...

    def load_position_state(self, state: Any) -> None:
        """Restore a position: the next call of ``epoch`` for it starts there."""
        ...


class UpdateRow(NamedTuple):
    """One optimizer update as written to the journal."""

    update: int
    """Counted from 1 over the whole run."""
    epoch: int
    """Counted from 1, as displayed."""
    loss: float
    """The window's loss: its sums divided by its counts."""
    grad_norm: float
    """Joint L2 norm of the window's gradient, before clipping."""
    lr: float
    """Learning rate of the first group, as used in this update."""
    examples: int
    """Examples in the window."""
    wait_s: float
    """Seconds spent waiting for data."""
    total_s: float
    """Seconds from requesting this window's data to the end of its update, without saving and evaluating."""
    skipped: bool
    """True when the gradient was not finite and the optimizer did not step."""
    rates: Sequence[float] = ()
    """Learning rates of all groups, where they differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    """The run is assembled and about to read its first batch."""

    name: str
    epochs: int
    updates: int | None
    """Updates in the whole run; None where the data has no known length."""
    start_update: int
    """Updates already done by the run this one resumes; 0 for a fresh run."""
    facts: Mapping[str, Any]
    """JSON-ready description: settings, model size, device, data sizes, versions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdatesDone:
    """A batch of finished updates, reported together so that the loop does not wait."""

    rows: Sequence[UpdateRow]
    memory_mib: float | None = None
    """Memory of tensors on the CUDA device, else of the process, after the last row; sampled."""
    layers: Mapping[str, float] | None = None
    """Gradient norm of each layer in the last row, before clipping; sampled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """One pass over a held-out (or the training) set."""

    update: int
    epoch: int
    split: str
    """"val" or "test"."""
    metrics: Mapping[str, float]
    """Item-weighted means by name: {"loss": 0.1, "accuracy": 0.97}."""
    tables: Mapping[str, Any]
    """JSON-ready results that are not one number: {"confusion": [[...], ...]}."""
    seconds: float
    best: bool
    """True when this is the best value of the monitored metric so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSaved:
    """A checkpoint is complete on disk."""

    update: int
    epoch: int
    path: str
    metrics: Mapping[str, float]
    """The latest evaluation this checkpoint belongs to: {"val/loss": 0.1}."""
    seconds: float
    """From the update's end until the checkpoint was complete."""
    blocked_s: float = 0.0
    """Seconds of the save during which training waited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """Something a person should read, such as a skipped update or an early stop."""

    update: int
    kind: str
    """A stable identifier: "not_finite", "early_stop", "interrupted", "preempted", "smoke", "resumed",
    "resumed_inexact", "resumed_changed", "rolled_back", "compiled", "compiled_in_part", "out_of_memory",
    "save_blocking", "mirror_down", "store_down", "store_behind",
    and "finding" for one of the sanitizer, whose details are a finding of the report's JSON."""
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
    """Peak memory of tensors on the CUDA device, else of the process; None where unknown."""


RunEvent = RunStarted | UpdatesDone | Evaluated | CheckpointSaved | Notice | RunEnded


class Reporter(Protocol):
    """Receives what the run does; never changes it."""

    def report(self, event: RunEvent) -> None:
        """Receive one event; called on the training thread, so it must return quickly."""
        ...

    def close(self) -> None:
        """Flush and release resources, also after an error."""
        ...
