"""Display a run on the terminal: as a live view that is redrawn regularly, as plain lines, or not at all."""

import atexit
import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from time import monotonic
from typing import Any, Literal

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from trueloop.cli.sparks import sparkline
from trueloop.core.formatting import format_count, format_duration, format_float, replace_unprintable
from trueloop.core.protocols import Evaluated, Notice, RunEnded, RunEvent, RunStarted, UpdatesDone
from trueloop.runs.live_progress import Progress

Mode = Literal["live", "plain", "quiet"]

REDRAW_S = 0.4  # a redraw takes about 4 ms, so the view takes one per cent of the time
LINE_S = 5.0  # seconds between two plain progress lines
MAX_NOTES = 10  # number of notes of one kind to print; the journal has all notes
END_WORDS = {"finished": "finished", "early_stop": "stopped early"}


class Display:
    """A `Reporter` that displays a run on the terminal.

    Args:
        mode: "live" needs a terminal; "plain" writes lines without control codes; "quiet" writes nothing. None = live
            on a terminal that can be redrawn, else plain.
        console: console to write to; None = standard output.
        now: function that returns the time in seconds.
    """

    def __init__(
        self, mode: Mode | None = None, *, console: Console | None = None, now: Callable[[], float] = monotonic
    ) -> None:
        self._console = console or Console(highlight=False)
        self.mode: Mode = mode or ("live" if can_redraw(self._console) else "plain")
        self.progress = Progress()
        self._now = now
        self._started_at = self._updated_at = now()
        self._live: Live | None = None
        self._notes: Counter[str] = Counter()

    def report(self, event: RunEvent) -> None:
        """Record one event, and update the display if it shows this event or is due for an update."""
        if self.mode == "quiet":
            return
        self.progress.observe(event)
        try:
            self._update(event)
        except OSError:  # the terminal or the reader of a pipe is gone; the run continues, and its journal is complete
            self.mode = "quiet"
            with suppress(OSError):
                self.close()

    def close(self) -> None:
        """Remove the live view and show the cursor again, even after an error; closing twice is harmless."""
        live, self._live = self._live, None
        if live:
            atexit.unregister(self.close)
            live.stop()

    def view(self) -> RenderableType:
        """Build the live view of the current state."""
        name = replace_unprintable(self.progress.started.name) if self.progress.started else ""
        return Panel(
            Group(self._header_row(), self._progress_row(), self._number_grid()),
            title=Text(name, "bold"),
            title_align="left",
            border_style="dim",
        )

    def _update(self, event: RunEvent) -> None:
        match event:
            case RunStarted():
                self._print_start(event)
            case UpdatesDone():
                self._redraw_if_due()
            case Evaluated():
                self._print_line(evaluation_line(self.progress, event), "bold" if event.best else "")
                self._updated_at = self._now()
            case Notice():
                self._print_note(event)
            case RunEnded():
                self._print_end(event)
            case _:
                pass

    def _print_start(self, event: RunStarted) -> None:
        self._started_at = self._updated_at = self._now()
        self._print_line(_opening_line(event), "bold")
        doctor: Any = event.facts.get("doctor")
        if isinstance(doctor, dict):
            self._print_line(f"doctor: {doctor['line']}", "yellow" if doctor["found"] else "dim")
        if self.mode == "live" and self._live is None:
            self._live = Live(self.view(), console=self._console, auto_refresh=False, transient=True)
            atexit.register(self.close)  # the cursor must reappear however the process ends
            self._live.start(refresh=True)

    def _redraw_if_due(self) -> None:
        now = self._now()
        if now - self._updated_at < (REDRAW_S if self._live else LINE_S):
            return
        self._updated_at = now
        if self._live:
            self._live.update(self.view(), refresh=True)
        else:
            self._print_line(progress_line(self.progress, now - self._started_at))

    def _print_note(self, event: Notice) -> None:
        self._notes[event.kind] += 1
        if self._notes[event.kind] <= MAX_NOTES:
            self._print_line(f"note: {event.message}", "yellow")
        elif self._notes[event.kind] == MAX_NOTES + 1:
            self._print_line(f"note: further notes of this kind ({event.kind}) are in the journal only", "yellow")

    def _print_end(self, event: RunEnded) -> None:
        self.close()
        state = END_WORDS.get(event.reason, event.reason)
        memory = "" if event.peak_memory_mib is None else f", peak memory {event.peak_memory_mib:.0f} MiB"
        self._print_line(
            f"{state} after {format_count(event.update, 'update')} in {format_duration(event.seconds)}{memory}", "bold"
        )

    def _print_line(self, line: str, style: str = "") -> None:
        """Print a line above the live view. It is never parsed as markup, because it may contain the user's names."""
        line = replace_unprintable(line)
        if self.mode == "live":
            self._console.print(Text(line, style))
            return
        encoding = self._console.encoding
        self._console.file.write(line.encode(encoding, "replace").decode(encoding) + "\n")
        self._console.file.flush()

    def _header_row(self) -> Table:
        elapsed = self._now() - self._started_at
        remaining_s = self.progress.remaining_s(elapsed)
        row = Table.grid(expand=True, padding=(0, 1))
        row.add_column(no_wrap=True, overflow="ellipsis")
        row.add_column(no_wrap=True, overflow="ellipsis", justify="right", style="dim")
        row.add_row(
            Text(_position_text(self.progress)),
            format_duration(elapsed) + ("" if remaining_s is None else f", {format_duration(remaining_s)} left"),
        )
        return row

    def _progress_row(self) -> Table:
        total = self.progress.started.updates if self.progress.started else None
        row = Table.grid(expand=True)  # a bar outside a table would not end its line
        elapsed = self._now() - self._started_at
        row.add_row(ProgressBar(total, self.progress.update, complete_style="cyan", animation_time=elapsed))
        return row

    def _number_grid(self) -> RenderableType:
        if self.progress.last is None:
            return Text("waiting for the first update", "dim")
        numbers = list(_labelled_numbers(self.progress))
        columns = max(1, min(4, (self._console.width - 4) // 28))
        grid = Table.grid(expand=True, padding=(0, 1))
        for _ in range(columns):
            grid.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
        for k in range(0, len(numbers), columns):
            grid.add_row(*(Text.assemble((f"{name} ", "dim"), value) for name, value in numbers[k : k + columns]))
        return grid


def can_redraw(console: Console) -> bool:
    """Return True for a terminal whose lines can be redrawn, and whose encoding has the characters of the view."""
    return console.is_terminal and not console.is_dumb_terminal and console.encoding.startswith("utf")


def evaluation_line(progress: Progress, event: Evaluated) -> str:
    """Format one evaluation as a line: "epoch 3/12  update 69/276  train loss 0.213  val loss 0.102  best"."""
    parts = [_position_text(progress, event)]
    if event.split == "val" and math.isfinite(progress.train_loss):
        parts.append(f"train loss {format_float(progress.train_loss)}")
    metrics = sorted(event.metrics.items(), key=lambda item: item[0] != "loss")
    parts += [
        f"{f'{event.split} ' if k == 0 else ''}{name} {format_float(value)}" for k, (name, value) in enumerate(metrics)
    ]
    return "  ".join([*parts, "best"] if event.best else parts)


def progress_line(progress: Progress, elapsed_s: float) -> str:
    """Format the current progress as a line, for an output that cannot be redrawn."""
    last, remaining_s = progress.last, progress.remaining_s(elapsed_s)
    if last is None:
        return f"{_position_text(progress)}  waiting for the first update"
    parts = [
        _position_text(progress),
        f"loss {format_float(progress.loss)}",
        f"norm {format_float(last.grad_norm)}",
        f"lr {format_float(last.lr)}",
        f"{progress.examples_per_s:,.0f} examples/s",
        f"waiting for data {100 * progress.waiting_share:.0f} %",
    ]
    return "  ".join(parts if remaining_s is None else [*parts, f"{format_duration(remaining_s)} left"])


def _labelled_numbers(progress: Progress) -> Iterator[tuple[str, str]]:
    last = progress.last
    if last is None:
        return
    yield "loss", f"{format_float(progress.loss)} {sparkline(progress.loss_trace(12))}"
    yield "grad norm", format_float(last.grad_norm)
    yield "lr", format_float(last.lr)
    yield "updates/s", format_float(progress.updates_per_s)
    yield "examples/s", f"{progress.examples_per_s:,.0f}"
    yield "waiting for data", f"{100 * progress.waiting_share:.0f} %"
    if progress.skipped:
        yield "skipped", str(progress.skipped)
    for split, event in progress.latest.items():
        for name, value in event.metrics.items():
            yield replace_unprintable(f"{split} {name}"), format_float(value)
    if progress.best:
        yield (
            f"best {replace_unprintable(progress.monitored_metric)}",
            f"{format_float(progress.best_value)} epoch {progress.best.epoch}",
        )


def _position_text(progress: Progress, event: Evaluated | None = None) -> str:
    epochs = f"/{progress.started.epochs}" if progress.started else ""
    updates = f"/{progress.started.updates}" if progress.started and progress.started.updates else ""
    epoch, update = (event.epoch, event.update) if event else (progress.epoch, progress.update)
    return f"epoch {epoch}{epochs}  update {update}{updates}"


def _opening_line(event: RunStarted) -> str:
    parts = [format_count(event.epochs, "epoch")]
    if event.updates is not None:
        parts.append(format_count(event.updates, "update"))
    if isinstance(parameters := event.facts.get("parameters"), int):
        parts.append(f"{parameters:,} parameters")
    if device := event.facts.get("device"):
        parts.append(f"on {device}")
    resumed = f"; resumed after update {event.start_update}" if event.start_update else ""
    return f"{event.name}: {', '.join(parts)}{resumed}"
