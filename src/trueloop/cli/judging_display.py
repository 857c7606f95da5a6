"""How far the judging of an entry is, on a terminal as a bar, elsewhere as a line now and then."""

from __future__ import annotations

from types import TracebackType
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from trueloop.lab.arena.leaderboard import Row


class JudgingDisplay:
    """Shows one entry from the queue to its verdict.

    Args:
        file: where to.
        quiet: show nothing.
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
        self._said = ""

    def show(self, row: Row, ahead: int) -> None:
        """Show where the entry is now."""
        line, done, of = progress_text(row, ahead)
        self._bar.update(self._task, description=line, completed=done, total=of)
        head = line.partition(" · update")[0]
        if not self._quiet and not self._console.is_terminal and head != self._said:
            self._said = head
            self._console.print(head, markup=False, soft_wrap=True)

    def __enter__(self) -> JudgingDisplay:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()


def progress_text(row: Row, ahead: int) -> tuple[str, float, int | None]:
    """Return a line, how many seeds are done, and of how many; None where it still waits."""
    progress = row.progress
    if "seed" not in progress:
        return f"in the queue, {ahead} ahead" if ahead else "the judge is starting", 0, None
    place, of = int(progress["seed"]), int(progress["of"])
    update, accuracy = int(progress["update"]), float(progress["accuracy"])
    ran = "run once more, to compare and to time" if progress.get("again") else f"{accuracy:.1%} held out"
    return f"seed {place + 1} of {of} · update {update}: {ran}", place, of
