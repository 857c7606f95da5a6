"""Translate journal lines to store records: metrics by name, step and time, checkpoints, notes.

An update row has no time. Its time is derived from earlier lines: the newest recorded time plus the seconds of the
updates since then. Every sync of a journal therefore yields the same times.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trueloop.core.protocols import CheckpointSaved, Evaluated, Notice, RunStarted
from trueloop.runs.journal_lines import UPDATE_EVENTS, expand_column, group_rates, parse_event
from trueloop.runs.tracking.journal_index import JournalIndex, event_key
from trueloop.runs.tracking.sink import MetricPoint, RunNote, SavedCheckpoint

Item = MetricPoint | SavedCheckpoint | RunNote


class Translator:
    """Translates the records of a journal in order.

    Args:
        index: index that knows which lines are current.
        state: `Translator.state` to continue from; empty = the beginning of the journal.
    """

    def __init__(self, index: JournalIndex, state: Mapping[str, float]) -> None:
        self._index = index
        self._clock_s = state.get("clock_s", 0.0)
        self._notes = int(state.get("notes", 0))

    @property
    def state(self) -> dict[str, float]:
        """State from which another translator can continue."""
        return {"clock_s": self._clock_s, "notes": self._notes}

    @property
    def time_ms(self) -> int:
        """Time of the last translated line, in ms since 1970."""
        return int(self._clock_s * 1000)

    def translate(self, offset: int, record: Mapping[str, Any]) -> Sequence[Item]:
        """Translate one record; the result is empty if the record was superseded or is not for a store.

        Args:
            offset: byte offset of the record's line.
            record: the parsed line.

        Raises:
            ValueError, KeyError, TypeError: the record is invalid.
        """
        if record["event"] in UPDATE_EVENTS:
            return list(self._translate_updates(offset, record))
        event, time_s = parse_event(record), float(record["time"])
        self._clock_s = time_s if isinstance(event, RunStarted) else max(self._clock_s, time_s)
        if not isinstance(event, Evaluated | CheckpointSaved | Notice):
            return ()
        key = None if isinstance(event, Notice) else event_key(event)
        if not self._index.is_current(offset, event.update, key):
            return ()
        match event:
            case Evaluated():
                return [self._translate_evaluation(event)]
            case CheckpointSaved():
                return [self._translate_checkpoint(event)]
            case Notice():
                return [self._translate_note(event)]

    def _translate_updates(self, offset: int, record: Mapping[str, Any]) -> Iterator[MetricPoint]:
        columns = MetricColumns(record)
        for k, update in enumerate(columns.updates):
            self._clock_s += columns.total_s[k]
            if self._index.is_current(offset, update):
                yield MetricPoint(update, self.time_ms, columns.values_of(k))

    def _translate_evaluation(self, event: Evaluated) -> MetricPoint:
        values = {f"{event.split}/{name}": value for name, value in event.metrics.items()}
        if event.best:
            values |= {f"best/{name}": value for name, value in values.items()}
        return MetricPoint(event.update, self._evaluated_ms(event.update), values)

    def _translate_checkpoint(self, event: CheckpointSaved) -> SavedCheckpoint:
        # A checkpoint is reported when it is complete on disk, after further updates: use the time of its evaluation.
        time_ms = self._evaluated_ms(event.update)
        return SavedCheckpoint(
            path=event.path, step=event.update, epoch=event.epoch, time_ms=time_ms, values=event.metrics
        )

    def _evaluated_ms(self, update: int) -> int:
        measured_ms = self._index.evaluated_ms(update)
        return self.time_ms if measured_ms is None else measured_ms

    def _translate_note(self, event: Notice) -> RunNote:
        self._notes += 1
        return RunNote(
            number=self._notes, step=event.update, time_ms=self.time_ms, kind=event.kind, message=event.message
        )


class MetricColumns:
    """The metrics of consecutive updates, one column per field.

    Raises:
        ValueError, KeyError, TypeError: the record is invalid.
    """

    def __init__(self, record: Mapping[str, Any]) -> None:
        first, count = int(record["update"]), int(record.get("rows", 1))
        self.updates = range(first, first + count)
        self.total_s = _parse_floats(record["total_s"], count)
        self._basic = {f"train/{name}": _parse_floats(record[name], count) for name in ("loss", "grad_norm", "lr")}
        self._examples = _parse_floats(record["examples"], count)
        self._wait_s = _parse_floats(record["wait_s"], count)
        self._skipped = expand_column(record["skipped"], count)
        self._rates = group_rates(record, count)
        self._memory_mib = float(record["memory_mib"]) if "memory_mib" in record else None

    def values_of(self, k: int) -> dict[str, float]:
        """Return the metrics of the k-th update, by name."""
        values = {name: column[k] for name, column in self._basic.items()}
        if len(self._rates[k]) > 1:
            values |= {f"train/lr_group_{group}": float(rate) for group, rate in enumerate(self._rates[k])}
        if self.total_s[k] > 0:
            values["train/examples_per_s"] = self._examples[k] / self.total_s[k]
            values["train/wait_share"] = self._wait_s[k] / self.total_s[k]
        if self._skipped[k]:
            values["train/skipped"] = 1.0
        if self._memory_mib is not None and k == len(self.updates) - 1:
            values["train/memory_mib"] = self._memory_mib
        return values


def _parse_floats(value: Any, count: int) -> Sequence[float]:
    return list(map(float, expand_column(value, count)))  # float() also parses "nan" and "inf"
