"""The seam to a store: what is handed over, and the protocol that MLflow, TensorBoard and W&B are spoken to by."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Protocol

from trueloop.core.errors import TrueloopError
from trueloop.core.json_text import parse_json

SCHEMA = 1
"""Of what is written into a store; a store that says a later one is left alone."""


class StoreError(TrueloopError):
    """A store that will not take runs until somebody changes something."""


class StoreUnavailable(StoreError):
    """A store that does not answer now; the same may work later."""


class StoreRejected(StoreUnavailable):
    """A store that answers, and will not have this of one run; begun anew the same may work, as after a deletion."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMetadata:
    """Who a run is."""

    run_id: str
    """32 hex digits, the same over all processes of the run."""
    name: str
    """Of its folder."""
    group: str
    """The name it was started by, a recipe's for one: an experiment of MLflow, a project of W&B."""
    started_ms: int
    """When the first process began, since 1970 (UTC)."""
    params: Mapping[str, str]
    """Configuration and options, flat."""
    tags: Mapping[str, str]
    """Where it runs, on what, from which code and data."""
    fingerprint: str
    """A fingerprint of what a store cannot change afterwards: the start, the params, and which tags there are."""


class MetricPoint(NamedTuple):
    """Values of one moment."""

    step: int
    """The update."""
    time_ms: int
    """Since 1970, told from the journal alone: the same however often it is copied."""
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedCheckpoint:
    """A checkpoint, with the metric row it belongs to."""

    path: str
    step: int
    epoch: int
    time_ms: int
    values: Mapping[str, float]
    """{"val/loss": 0.1}; empty where nothing was measured at this update."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNote:
    """Something a person should read."""

    number: int
    """From 1."""
    step: int
    time_ms: int
    kind: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreBatch:
    """What some lines of a journal hold, in their order."""

    points: Sequence[MetricPoint] = ()
    checkpoints: Sequence[SavedCheckpoint] = ()
    notes: Sequence[RunNote] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncCursor:
    """How far a journal has come into a store; the store keeps it beside the run."""

    journal_bytes: int
    """All that counts up to here is in the store."""
    checksum: str
    """A checksum of the last line before that place, to know the journal again."""
    fingerprint: str
    """See `Card.fingerprint`."""
    state: str
    """How the run ended; empty while it is being written: then more than ``journal_bytes`` may be there."""
    translator_state: Mapping[str, float]
    """What must be known to read on from there."""

    def to_json(self) -> str:
        """Write it as one line of JSON."""
        return json.dumps({"schema": SCHEMA, **asdict(self)})

    @staticmethod
    def parse(text: str | None) -> SyncCursor | None:
        """Read it back; None where there is none, or nothing that could have been one.

        Raises:
            StoreError: a later trueloop wrote it.
        """
        try:
            record: dict[str, Any] = parse_json(text or "")
            schema = int(record.pop("schema"))
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            return None
        if schema > SCHEMA:
            raise StoreError(
                f"A later trueloop wrote this run into the store: schema {schema}, this one knows {SCHEMA}.",
                why="To write on would mix the two.",
                fix="Use the trueloop that wrote it, or a newer one.",
            )
        try:
            memory = {str(name): float(value) for name, value in record["memory"].items()}
            if not all(map(math.isfinite, memory.values())):
                return None
            return SyncCursor(
                journal_bytes=int(record["journal_bytes"]),
                checksum=str(record["seal"]),
                fingerprint=str(record["shape"]),
                state=str(record["state"]),
                translator_state=memory,
            )
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
            return None


class Sink(Protocol):
    """A store, spoken to about one run at a time. Every method blocks, and raises `StoreUnavailable` or `StoreError`."""

    @property
    def is_idempotent(self) -> bool:
        """Whether what is handed over twice is there once."""
        ...

    @property
    def can_append(self) -> bool:
        """Whether a run that another process closed can be written on."""
        ...

    def find_cursor(self, run: RunMetadata) -> SyncCursor | None:
        """Say how far the run is in the store; None where it is not, or in a way that cannot be trusted."""
        ...

    def open_run(self, run: RunMetadata) -> None:
        """Make the run where it is not there yet, and say who it is."""
        ...

    def write(self, batch: StoreBatch, cursor: SyncCursor) -> None:
        """Write a batch, and only then the mark."""
        ...

    def finish_run(self, state: str, time_ms: int, cursor: SyncCursor) -> None:
        """Say how the run ended, and only then write the mark."""
        ...

    def delete_run(self, card: RunMetadata) -> bool:
        """Remove all that trueloop wrote about this run, and nothing else; say whether there was anything."""
        ...

    def close(self) -> None:
        """Let go; harmless twice."""
        ...
