"""The lines of a journal in the words of a store: metrics by name, step and time, checkpoints, remarks.

An update row has no time of its own. It is told from the lines before it: the newest time that was written down, and
the seconds of the updates since. So it is the same however often the journal is copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trueloop.core.protocols import CheckpointSaved, Evaluated, Notice, RunStarted
from trueloop.runs.journal_lines import UPDATE_EVENTS, expand_column, group_rates, parse_event
from trueloop.runs.tracking.journal_index import JournalIndex, event_key
from trueloop.runs.tracking.sink import MetricPoint, RunNote, SavedCheckpoint

Item = MetricPoint | SavedCheckpoint | RunNote


class Translation:
    """Reads a journal's records in their order.

    Args:
        survey: knows which of them count.
        memory: of the translation that this one goes on from.
    """

    def __init__(self, survey: JournalIndex, memory: Mapping[str, float]) -> None:
        self._survey = survey
        self._clock_s = memory.get("clock_s", 0.0)
        self._remarks = int(memory.get("remarks", 0))

    @property
    def memory(self) -> dict[str, float]:
        """What must be known to go on from here."""
        return {"clock_s": self._clock_s, "remarks": self._remarks}

    @property
    def time_ms(self) -> int:
        """When the last line was written, since 1970."""
        return int(self._clock_s * 1000)

    def read(self, place: int, record: Mapping[str, Any]) -> Sequence[Item]:
        """Translate one record; nothing where it counts no longer or is not for a store.

        Args:
            place: where its line begins, in bytes.
            record: what it holds.

        Raises:
            ValueError, KeyError, TypeError: it is not what a journal holds.
        """
        if record["event"] in UPDATE_EVENTS:
            return list(self._rows(place, record))
        event, time_s = parse_event(record), float(record["time"])
        self._clock_s = time_s if isinstance(event, RunStarted) else max(self._clock_s, time_s)
        if not isinstance(event, Evaluated | CheckpointSaved | Notice):
            return ()
        key = None if isinstance(event, Notice) else event_key(event)
        if not self._survey.is_current(place, event.update, key):
            return ()
        match event:
            case Evaluated():
                return [self._evaluated(event)]
            case CheckpointSaved():
                return [self._saved(event)]
            case Notice():
                return [self._noted(event)]

    def _rows(self, place: int, record: Mapping[str, Any]) -> Iterator[MetricPoint]:
        columns = Columns(record)
        for k, update in enumerate(columns.updates):
            self._clock_s += columns.total_s[k]
            if self._survey.is_current(place, update):
                yield MetricPoint(update, self.time_ms, columns.values_of(k))

    def _evaluated(self, event: Evaluated) -> MetricPoint:
        values = {f"{event.split}/{name}": value for name, value in event.metrics.items()}
        if event.best:
            values |= {f"best/{name}": value for name, value in values.items()}
        return MetricPoint(event.update, self._measured_ms(event.update), values)

    def _saved(self, event: CheckpointSaved) -> SavedCheckpoint:
        # It is told once it is whole on disk, while training went on; its metrics are points of the evaluation.
        time_ms = self._measured_ms(event.update)
        return SavedCheckpoint(path=event.path, step=event.update, epoch=event.epoch, time_ms=time_ms, values=event.metrics)

    def _measured_ms(self, update: int) -> int:
        measured_ms = self._survey.evaluated_ms(update)
        return self.time_ms if measured_ms is None else measured_ms

    def _noted(self, event: Notice) -> RunNote:
        self._remarks += 1
        return RunNote(
            number=self._remarks, step=event.update, time_ms=self.time_ms, kind=event.kind, message=event.message
        )


class Columns:
    """A stretch of updates: each field with a value for each of them.

    Raises:
        ValueError, KeyError, TypeError: it is not what a journal holds.
    """

    def __init__(self, record: Mapping[str, Any]) -> None:
        first, count = int(record["update"]), int(record.get("rows", 1))
        self.updates = range(first, first + count)
        self.total_s = _numbers(record["total_s"], count)
        self._plain = {f"train/{name}": _numbers(record[name], count) for name in ("loss", "grad_norm", "lr")}
        self._examples = _numbers(record["examples"], count)
        self._wait_s = _numbers(record["wait_s"], count)
        self._skipped = expand_column(record["skipped"], count)
        self._rates = group_rates(record, count)
        self._memory_mib = float(record["memory_mib"]) if "memory_mib" in record else None

    def values_of(self, k: int) -> dict[str, float]:
        """Return the metrics of one of them, by name."""
        values = {name: column[k] for name, column in self._plain.items()}
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


def _numbers(value: Any, count: int) -> Sequence[float]:
    return list(map(float, expand_column(value, count)))  # "nan" and "inf" become floats again
