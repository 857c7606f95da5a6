"""Define the protocol of stores, which MLflow, TensorBoard and W&B implement, and the records that a store receives."""

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


def truncate(text: str, length: int) -> str:
    """Truncate a text to a length, including an ellipsis."""
    return text if len(text) <= length else text[: length - 1] + "…"


class StoreError(TrueloopError):
    """Error of a store that cannot accept runs until the user changes something."""


class StoreUnavailable(StoreError):
    """Error of a store that does not answer now; a retry may succeed."""


class StoreRejected(StoreUnavailable):
    """Error of a store that rejects a request for one run; writing the run from scratch may succeed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMetadata:
    """The identity and settings of a run."""

    run_id: str
    """Id of the run: 32 hex digits, the same for all processes of the run."""
    name: str
    """Name of the run folder."""
    group: str
    """Name of the recipe or Trainer: the MLflow experiment, or the W&B project."""
    started_ms: int
    """Start time of the first process, in ms since 1970 (UTC)."""
    params: Mapping[str, str]
    """Configuration and options by dotted name."""
    tags: Mapping[str, str]
    """Facts about machine, versions, code and data."""
    fingerprint: str
    """Hash of the values that a store cannot change later: start time, params, and the names of the tags."""


class MetricPoint(NamedTuple):
    """Metric values at one update."""

    step: int
    """Number of the update."""
    time_ms: int
    """Time in ms since 1970, derived only from the journal, so that every sync yields the same time."""
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedCheckpoint:
    """A checkpoint with the metrics of its update."""

    path: str
    step: int
    epoch: int
    time_ms: int
    values: Mapping[str, float]
    """Metrics by name: {"val/loss": 0.1}; empty if nothing was evaluated at this update."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNote:
    """A message for the user."""

    number: int
    """Number of the note in its run, from 1."""
    step: int
    time_ms: int
    kind: str
    message: str

    def __str__(self) -> str:
        return f"update {self.step}, {self.kind}: {truncate(self.message, 4000)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreBatch:
    """Records for a store, translated from consecutive journal lines."""

    points: Sequence[MetricPoint] = ()
    checkpoints: Sequence[SavedCheckpoint] = ()
    notes: Sequence[RunNote] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncCursor:
    """How much of a journal is in a store; the store contains the cursor next to the run."""

    journal_bytes: int
    """Byte offset in the journal; the store contains all current lines before this offset."""
    checksum: str
    """Checksum of the bytes before ``journal_bytes``, to recognise the journal."""
    fingerprint: str
    """`RunMetadata.fingerprint` of the run."""
    state: str
    """State of the run; "" during a sync, when the store may contain lines after ``journal_bytes``."""
    translator_state: Mapping[str, float]
    """`Translator.state` at ``journal_bytes``."""

    def to_json(self) -> str:
        """Encode the cursor as one line of JSON."""
        return json.dumps({"schema": SCHEMA, **asdict(self)})

    @staticmethod
    def parse(text: str | None) -> SyncCursor | None:
        """Parse a cursor; None if the text is missing or invalid.

        Raises:
            StoreError: a later trueloop wrote the cursor.
        """
        try:
            record: dict[str, Any] = parse_json(text or "")
            schema = int(record.pop("schema"))
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            return None
        if schema > SCHEMA:
            raise StoreError(
                f"A later trueloop wrote this run into the store: its schema is {schema}, the known schema {SCHEMA}.",
                why="Continuing would mix two schemas.",
                fix="Use the trueloop that wrote the run, or a newer one.",
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
        """True if writing the same records twice stores them once."""
        ...

    @property
    def can_append(self) -> bool:
        """True if the sink can continue a run that another process closed."""
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
        """Write the state of the run, and only then the cursor."""
        ...

    def delete_run(self, run: RunMetadata) -> bool:
        """Delete everything that trueloop wrote about a run, and nothing else; return True if something was deleted."""
        ...

    def close(self) -> None:
        """Release the store; closing twice is harmless."""
        ...
