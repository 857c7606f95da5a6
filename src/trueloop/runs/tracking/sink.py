"""Define the store protocol that MLflow, TensorBoard and W&B implement, and the records passed to it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Protocol

from trueloop.core.errors import TrueloopError
from trueloop.core.json_text import parse_json

SCHEMA = 1
"""Version of the records in a store; a store with a later version is not modified."""


class StoreError(TrueloopError):
    """A store that cannot accept runs until its user changes something."""


class StoreUnavailable(StoreError):
    """A store that does not answer now; a retry may succeed."""


class StoreRejected(StoreUnavailable):
    """A store that rejects a request for one run; a full rewrite may succeed, for example after a deletion."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMetadata:
    """The identity and settings of a run."""

    run_id: str
    """32 hex digits, the same for all processes of the run."""
    name: str
    """Name of the run folder."""
    group: str
    """Name of the recipe or Trainer: the MLflow experiment, or the W&B project."""
    started_ms: int
    """When the first process started, in ms since 1970 (UTC)."""
    params: Mapping[str, str]
    """Configuration and options, flat."""
    tags: Mapping[str, str]
    """Machine, versions, code and data."""
    fingerprint: str
    """Hash of what a store cannot change afterwards: start time, params, and the names of the tags."""


class MetricPoint(NamedTuple):
    """Metric values at one update."""

    step: int
    """The update."""
    time_ms: int
    """Time in ms since 1970, derived from the journal only, so that every sync yields the same."""
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedCheckpoint:
    """A checkpoint with the metrics of its update."""

    path: str
    step: int
    epoch: int
    time_ms: int
    values: Mapping[str, float]
    """{"val/loss": 0.1}; empty if nothing was evaluated at this update."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNote:
    """A message for the user."""

    number: int
    """Running number, from 1."""
    step: int
    time_ms: int
    kind: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreBatch:
    """The store records of some journal lines, in order."""

    points: Sequence[MetricPoint] = ()
    checkpoints: Sequence[SavedCheckpoint] = ()
    notes: Sequence[RunNote] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncCursor:
    """How much of a journal is in a store; the store keeps the cursor with the run."""

    journal_bytes: int
    """Offset in the journal; all current lines before it are in the store."""
    checksum: str
    """Checksum of the bytes before that offset, to recognise the journal."""
    fingerprint: str
    """See `RunMetadata.fingerprint`."""
    state: str
    """How the run ended; empty during a sync, when the store may contain lines after ``journal_bytes``."""
    translator_state: Mapping[str, float]
    """State of the translator at that offset."""

    def to_json(self) -> str:
        """Encode the cursor as one line of JSON."""
        return json.dumps({"schema": SCHEMA, **asdict(self)})

    @staticmethod
    def parse(text: str | None) -> SyncCursor | None:
        """Parse a cursor; None if there is none or it is invalid.

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
                why="Continuing would mix two schemas.",
                fix="Use the trueloop that wrote it, or a newer one.",
            )
        try:
            state = {str(name): float(value) for name, value in record["translator_state"].items()}
            if not all(map(math.isfinite, state.values())):
                return None
            return SyncCursor(
                journal_bytes=int(record["journal_bytes"]),
                checksum=str(record["checksum"]),
                fingerprint=str(record["fingerprint"]),
                state=str(record["state"]),
                translator_state=state,
            )
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
            return None


class Sink(Protocol):
    """A store, used for one run at a time. Every method blocks, and may raise `StoreUnavailable` or `StoreError`."""

    @property
    def is_idempotent(self) -> bool:
        """Whether writing the same records twice stores them once."""
        ...

    @property
    def can_append(self) -> bool:
        """Whether a run that another process closed can be continued."""
        ...

    def find_cursor(self, run: RunMetadata) -> SyncCursor | None:
        """Return the cursor of a run in the store; None if the run is absent or its content cannot be trusted."""
        ...

    def open_run(self, run: RunMetadata) -> None:
        """Create the run if it does not exist, and write its metadata."""
        ...

    def write(self, batch: StoreBatch, cursor: SyncCursor) -> None:
        """Write a batch, and only then the cursor."""
        ...

    def finish_run(self, state: str, time_ms: int, cursor: SyncCursor) -> None:
        """Write how the run ended, and only then the cursor."""
        ...

    def delete_run(self, run: RunMetadata) -> bool:
        """Delete everything that trueloop wrote about a run, and nothing else; return whether there was anything."""
        ...

    def close(self) -> None:
        """Release the store; closing twice is harmless."""
        ...
