"""The seams between engines: who hands what to whom, without either knowing the other.

A `BatchSource` feeds the loop (data offers two); a `Reporter` hears what the loop did (runs writes
it down, the terminal draws it). One window is the K micro-batches between two optimizer updates.
"""

from __future__ import annotations

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
    """The dataset indices in this batch, to name a culprit; None where the loader does not tell. Empty: see
    `is_padding`."""


def is_padding(micro: MicroBatch) -> bool:
    """True where this process has no share of the micro-batch: nothing in ``data`` counts.

    It holds samples of another process's share, so that the model runs as often here as there.
    """
    return micro.indices is not None and not len(micro.indices)


class BatchSource(Protocol):
    """Epoch after epoch of micro-batches, cut into windows; any position can be reached."""

    @property
    def updates_per_epoch(self) -> int | None:
        """Windows in one epoch; None for a stream of unknown length."""
        ...

    def epoch(self, epoch: int, skip_updates: int = 0) -> Iterator[MicroBatch]:
        """Yield the micro-batches of one epoch, in order.

        Args:
            epoch: counted from 0.
            skip_updates: windows already trained on in this epoch, which are not drawn again.
        """
        ...


@runtime_checkable
class StatefulOrder(Protocol):
    """A `BatchSource` whose order hangs on random generators, not on the epoch's number alone."""

    def order_state(self) -> Any:
        """Return the state of the generators it has of its own, as tensors and numbers."""
        ...

    def load_order_state(self, state: Any) -> None:
        """Put them back."""
        ...


@runtime_checkable
class StatefulPosition(Protocol):
    """A `BatchSource` that can say where it is, where skipping windows would mean to read them again."""

    def position_state(self) -> Any:
        """Return the place after the last window drawn, as plain data; None where skipping windows finds it."""
        ...

    def load_position_state(self, state: Any) -> None:
        """Take it over: ``epoch``, called next for that place, begins there."""
        ...


class UpdateRow(NamedTuple):
    """One optimizer update, as it is journaled."""

    update: int
    """Counted from 1 over the whole run."""
    epoch: int
    """Counted from 1, as people read it."""
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
    """Seconds from asking for this window's data to the end of its update; saving and evaluating are not in it."""
    skipped: bool
    """True when the gradient was not finite and nothing was stepped."""
    rates: Sequence[float] = ()
    """Learning rates of all groups, where they are not all alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    """The run is assembled and about to draw its first batch."""

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
    """Some updates went by; delivered in batches so that the loop is not held up."""

    rows: Sequence[UpdateRow]
    memory_mib: float | None = None
    """Of tensors on the CUDA device, else of the process, at their end; told now and then."""
    layers: Mapping[str, float] | None = None
    """The gradient's norm of each layer in the last of them, before clipping; told now and then."""


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
    """JSON-ready things that are not one number: {"confusion": [[...], ...]}."""
    seconds: float
    best: bool
    """True when this is the best value of the monitored metric so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSaved:
    """A checkpoint is whole on disk."""

    update: int
    epoch: int
    path: str
    metrics: Mapping[str, float]
    """The latest evaluation this checkpoint belongs to: {"val/loss": 0.1}."""
    seconds: float
    """From the update's end until the checkpoint was whole."""
    blocked_s: float = 0.0
    """The part of it that training waited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """Something a person should read: a skipped update, an early stop."""

    update: int
    kind: str
    """A stable word: "not_finite", "early_stop", "interrupted", "preempted", "smoke", "resumed",
    "resumed_inexact", "resumed_changed", "rolled_back", "compiled", "compiled_in_part", "out_of_memory",
    "save_blocking", "mirror_down", "store_down", "store_behind",
    and "finding", of the sanitizer, whose details are a finding of the report's JSON."""
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
    """Of tensors on the CUDA device, else of the process; None where it cannot be told."""


RunEvent = RunStarted | UpdatesDone | Evaluated | CheckpointSaved | Notice | RunEnded


class Reporter(Protocol):
    """Hears what the run does; never changes it."""

    def report(self, event: RunEvent) -> None:
        """Take one event; called on the training thread, so it must be quick."""
        ...

    def close(self) -> None:
        """Flush and let go, also after an error."""
        ...
