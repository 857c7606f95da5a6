"""Read the journal of a run in progress, in bounded memory and a bounded number of bytes at a time.

`runs.journal.read_journal` reads a complete journal and trusts it. This reader serves a page that polls journals from
untrusted sources.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from trueloop.core.downsampling import DownsampledSeries
from trueloop.core.errors import InvalidData
from trueloop.core.json_text import parse_json
from trueloop.core.protocols import CheckpointSaved, Evaluated, Notice, RunEnded, RunStarted, UpdateRow
from trueloop.runs.history import TimeSplit
from trueloop.runs.journal import JOURNAL_NAME
from trueloop.runs.journal_lines import READABLE_SCHEMAS, SCHEMA, UPDATE_EVENTS, expand_column, group_rates, parse_event
from trueloop.runs.live.columns import LayerNorms
from trueloop.runs.live.rows import Rows, row_of_update
from trueloop.runs.live.tail import Tail

MAX_UPDATES_PER_POLL: Final = 40_000  # reading these takes 0.1 s
MAX_ROWS_PER_LINE: Final = 100_000  # a run writes ten lines per second
MAX_COUNT: Final = 2**53
MAX_METRICS: Final = 48  # further metrics are ignored
MAX_SPLITS: Final = 8  # each metric has one curve per split
MAX_NAME_CHARS: Final = 200  # length of the name of a metric or split
MAX_EVALUATIONS: Final = 4000
MAX_LISTED: Final = 500  # number of newest notes, findings and checkpoints
MAX_TEXT_CHARS: Final = 2000  # length of a text on a page
_MAX_GROUPS: Final = 16  # number of parameter groups whose learning rates are read
_COLUMNS: Final = ("epoch", "loss", "grad_norm", "lr", "examples", "wait_s", "total_s", "skipped")


class JournalReader:
    """Reads the journal of one run incrementally.

    Args:
        run_dir: the run folder.
    """

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.tail = Tail(run_dir / JOURNAL_NAME)
        self._pending: list[bytes] = []
        self._restarts = 0
        self._read_something = False
        self._reset()

    def _reset(self) -> None:
        self.problem = ""
        """Why reading stopped; "" while the journal is readable."""
        self.started: RunStarted | None = None
        self.started_at = 0.0
        self.processes = 0
        self.epoch = 0
        self.rows = Rows()
        self.rates: list[DownsampledSeries[float]] = []
        """Learning rates of the second and further parameter groups; empty if all groups have the same rate."""
        self.memory: DownsampledSeries[float] = DownsampledSeries()
        self.evaluations: list[Evaluated] = []
        self.checkpoints: deque[CheckpointSaved] = deque(maxlen=MAX_LISTED)
        self.notes: deque[Notice] = deque(maxlen=MAX_LISTED)
        self.skipped: deque[int] = deque(maxlen=MAX_LISTED)
        self.layers = LayerNorms()
        self.end: RunEnded | None = None
        self._spent = {"evaluating": 0.0, "saving": 0.0}
        self._metrics: set[str] = set()
        self._splits: set[str] = set()
        self._line = 0

    @property
    def has_more(self) -> bool:
        """True if another `poll` will read more immediately."""
        return bool(self._pending) or (not self.problem and self.tail.remaining > 0 and self._read_something)

    @property
    def update(self) -> int:
        """The newest update that no resume has superseded."""
        if self.rows.rows:
            return self.rows.rows[-1].update
        return self.started.start_update if self.started else 0

    def time_split(self) -> TimeSplit:
        """Sum the seconds by activity."""
        waiting = sum(row.wait_s for row in self.rows.rows)
        total = sum(row.total_s for row in self.rows.rows)
        return TimeSplit(computing=max(0.0, total - waiting), waiting=waiting, **self._spent)

    def poll(self) -> bool:
        """Read at most one chunk of new lines and return whether there were any; errors are stored in ``problem``.

        Cost: at most 0.1 s.
        """
        self._read_something = False
        if self.problem and not self._pending and not self._reopen_if_replaced():
            return False
        try:
            if not self._pending:
                self._pending = self.tail.read_lines()
                if self.tail.restarts != self._restarts:
                    self._restarts = self.tail.restarts
                    self._reset()
                self._pending.reverse()  # so that pop() returns the oldest line
            self._read_something = bool(self._pending)
            self._add_pending()
        except InvalidData as error:
            self._stop(error.what)
        except OSError as error:
            self._stop(f"The journal cannot be read: {error.strerror or error}.")
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            self._stop(f"Line {self._line} is not a journal line: {str(error)[:200] or type(error).__name__}.")
        return self._read_something

    def _reopen_if_replaced(self) -> bool:
        """Start over and return True if another file replaced the damaged journal."""
        if not self.tail.was_replaced():
            return False
        self.tail = Tail(self.run_dir / JOURNAL_NAME)
        self._restarts = 0
        self._reset()
        return True

    def _stop(self, problem: str) -> None:
        self.problem, self._pending = problem, []

    def _add_pending(self) -> None:
        budget = MAX_UPDATES_PER_POLL
        while self._pending and budget > 0:
            self._line += 1
            budget -= self._add_line(self._pending.pop())

    def _add_line(self, line: bytes) -> int:
        """Add one line, and return its cost: the number of updates that would take as long."""
        record: Any = parse_json(line)
        if not isinstance(record, dict):
            raise TypeError("not an object")
        fields: dict[str, Any] = record  # pyright: ignore[reportUnknownVariableType]
        if fields.get("schema", SCHEMA) not in READABLE_SCHEMAS:
            raise InvalidData(f"The journal has schema {fields['schema']!r}; this trueloop reads up to {SCHEMA}.")
        if fields["event"] in UPDATE_EVENTS:
            return self._add_updates(fields)
        self._add_event(fields)
        return 10

    def _add_updates(self, record: Mapping[str, Any]) -> int:
        first, count = int(record["update"]), int(record.get("rows", 1))
        if not 1 <= count <= MAX_ROWS_PER_LINE or not 0 <= first < MAX_COUNT:
            raise ValueError(f"a line of {count} updates from update {first}")
        if first <= self.update and self.rows.rows:
            raise ValueError(f"update {first} after update {self.update}: two processes wrote at once")
        columns = [expand_column(record[name], count) for name in _COLUMNS]
        for update, values in enumerate(zip(*columns, strict=True), first):
            row = _update_row(update, values)
            self.rows.add(row_of_update(row))
            if row.skipped:
                self.skipped.append(update)
        self.epoch = int(columns[0][-1])
        self._add_rates(record, first, count)
        if "memory_mib" in record:
            self.memory.add(first + count - 1, float(record["memory_mib"]))
        if "layers" in record:
            layers: Mapping[str, Any] = record["layers"]
            self.layers.add(first + count - 1, list(layers), list(layers.values()))
        return count

    def _add_rates(self, record: Mapping[str, Any], first: int, count: int) -> None:
        for update, rates in enumerate(group_rates(record, count), first):
            for group, rate in enumerate(rates[1:_MAX_GROUPS]):
                if group == len(self.rates):
                    self.rates.append(DownsampledSeries())
                self.rates[group].add(update, float(rate))

    def _add_event(self, record: Mapping[str, Any]) -> None:
        event = parse_event(record)
        if any(type(value) is int and abs(value) >= MAX_COUNT for value in record.values()):
            raise ValueError("a count out of range")
        match event:
            case RunStarted():
                self._add_start(event, float(record["time"]))
            case Evaluated():
                self._add_evaluation(event)
            case CheckpointSaved():
                self._spent["saving"] += event.seconds
                self.checkpoints.append(event)
            case Notice():
                self.notes.append(event)
            case RunEnded():
                self.end = event

    def _add_evaluation(self, event: Evaluated) -> None:
        metrics: dict[str, float] = {}
        self._spent["evaluating"] += event.seconds
        split = event.split[:MAX_NAME_CHARS]
        if split not in self._splits and len(self._splits) >= MAX_SPLITS:
            return
        self._splits.add(split)
        for name, value in event.metrics.items():
            if len(name) <= MAX_NAME_CHARS and (name in self._metrics or len(self._metrics) < MAX_METRICS):
                self._metrics.add(name)
                metrics[name] = value
        if len(self.evaluations) >= MAX_EVALUATIONS:  # keep every second evaluation, and the best ones
            self.evaluations = [older for k, older in enumerate(self.evaluations) if k % 2 == 0 or older.best]
            del self.evaluations[: -(MAX_EVALUATIONS - 1)]
        self.evaluations.append(replace(event, split=split, metrics=metrics, tables={}, best=bool(event.best)))

    def _add_start(self, event: RunStarted, time_s: float) -> None:
        """Add the start of a process: drop the lines after the checkpoint that it resumes, all for a fresh start."""
        start_update = event.start_update
        if start_update == 0 or self.started is None:
            self.started_at, self.processes = time_s, 0
        self.started, self.end = event, None
        self.processes += 1
        self.rows.drop_after(start_update)
        for series in (*self.rates, self.memory):
            series.drop_after(start_update)
        self.evaluations = [evaluation for evaluation in self.evaluations if evaluation.update <= start_update]
        self.layers.columns.drop_after(start_update)
        self.checkpoints = deque((saved for saved in self.checkpoints if saved.update <= start_update), MAX_LISTED)
        self.notes = deque((note for note in self.notes if note.update <= start_update), MAX_LISTED)
        self.skipped = deque((update for update in self.skipped if update <= start_update), MAX_LISTED)


def _update_row(update: int, values: Sequence[Any]) -> UpdateRow:
    epoch, loss, norm, lr, examples, wait_s, total_s, skipped = values
    if not abs(int(examples)) < MAX_COUNT or not abs(int(epoch)) < MAX_COUNT:
        raise ValueError("a number of examples or epochs out of range")
    return UpdateRow(
        update=update,
        epoch=int(epoch),
        loss=float(loss),
        grad_norm=float(norm),
        lr=float(lr),
        examples=int(examples),
        wait_s=float(wait_s),
        total_s=float(total_s),
        skipped=bool(skipped),
    )
