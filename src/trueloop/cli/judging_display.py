"""Show the progress of judging an entry: as a bar on a terminal, otherwise as one line per stage."""

from __future__ import annotations

from types import TracebackType
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from trueloop.lab.arena.leaderboard import Row


class JudgingDisplay:
    """Shows the progress of one entry until it is judged.

    Args:
        file: stream to write to.
        quiet: True = write nothing.
    """

    def __init__(self, file: TextIO, *, quiet: bool = False) -> None:
        console = Console(file=file, highlight=False)
        self._console, self._quiet = console, quiet
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=quiet or not console.is_terminal,
        )
        self._task = self._bar.add_task("waiting", total=None)
        self._last_line = ""

    def show(self, row: Row, ahead: int) -> None:
        """Show the current progress of an entry; `ahead` entries are judged before it."""
        line, finished, seeds = progress_text(row, ahead)
        self._bar.update(self._task, description=line, completed=finished, total=seeds)
        stage = line.partition(" · update")[0]
        if not self._quiet and not self._console.is_terminal and stage != self._last_line:
            self._last_line = stage
            self._console.print(stage, markup=False, soft_wrap=True)

    def __enter__(self) -> JudgingDisplay:
        self._bar.start()
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()


def progress_text(row: Row, ahead: int) -> tuple[str, float, int | None]:
    """Return a line of text, the number of finished seeds, and the number of all seeds (None if the entry waits)."""
    progress = row.progress
    if "seed" not in progress:
        return f"in the queue, {ahead} ahead" if ahead else "the judge is starting", 0, None
    index, seeds = int(progress["seed"]), int(progress["of"])
    update, accuracy = int(progress["update"]), float(progress["accuracy"])
    state = "run again, to compare and to measure its time" if progress.get("again") else f"{accuracy:.1%} held out"
    return f"seed {index + 1} of {seeds} · update {update}: {state}", index, seeds
