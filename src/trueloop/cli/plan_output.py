"""Print the result of `trueloop plan`: numbers with their formulas, the timeline and its legend, notes."""

from collections.abc import Iterable, Iterator

from rich.console import Console, RenderableType
from rich.table import Column, Table
from rich.text import Text

from trueloop.app.planning.formulas import rows
from trueloop.cli.timeline import FULL, LEFT_OUT, MISSING, PARTIAL, colour_marks, full_window, last_window, timeline
from trueloop.core.arithmetic import Plan
from trueloop.core.formatting import format_count, format_number


def print_plan(plan: Plan, console: Console) -> None:
    """Print numbers, timeline and notes, no wider than the console."""
    wide = console.width >= 50  # in columns; a narrower console shows no formulas
    columns = [Column(no_wrap=wide), Column(justify="right", style="bold", overflow="fold")]
    if wide:
        columns.append(Column(style="dim", overflow="fold"))
    console.print(_grid((row[: len(columns)] for row in _number_rows(plan)), *columns), "")
    for row in timeline(plan, console.width):
        console.print(row)
    console.print("", _grid(_legend(plan)))
    if plan.notes:
        console.print("", _grid(("[yellow]•[/]", note) for note in plan.notes))


def _grid(rows: Iterable[tuple[RenderableType, ...]], *columns: Column) -> Table:
    grid = Table.grid(*columns, padding=(0, 2))
    for row in rows:
        grid.add_row(*row)
    return grid


def _number_rows(plan: Plan) -> Iterator[tuple[str, str, str]]:
    """Yield name, value and formula of each number, and a blank row before the numbers of the whole run."""
    numbers = rows(plan)
    for index, row in enumerate(numbers):
        if row.group == "run" and numbers[index - 1].group != "run":
            yield "", "", ""
        yield "  " * row.inner + row.name, row.value, row.formula


def _legend(plan: Plan) -> Iterator[tuple[Text, str]]:
    """Yield each mark of the timeline with its meaning."""
    seen, left_out, window = plan.examples_per_epoch, plan.never_seen_per_epoch, plan.effective_batch
    batch = format_count(plan.batch, "example") + f" on each of {format_number(plan.processes)} processes" * (
        plan.processes > 1
    )
    partial = f"{format_number(plan.last_batch)} of {format_count(plan.iteration_examples, 'example')}"
    full, last = format_count(window, "example"), format_count(plan.last_window_examples, "example")
    name = f"the short window of {format_number(plan.last_window)}" if plan.short_last_window else "the last window"
    for appears, marks, meaning in (
        (seen >= plan.iteration_examples, FULL, f"iteration: {batch}"),
        (plan.partial_last_batch, PARTIAL, f"partial iteration: {partial}"),
        (seen >= window, full_window(plan), f"window of {format_number(plan.accumulate)}: one update, from {full}"),
        (last != full, last_window(plan), f"{name}: one update, from {last}"),
        (plan.short_last_window, MISSING, "missing iteration of the short window"),
        (left_out, LEFT_OUT, f"left out by drop_last: {format_count(left_out, 'example')}"),
    ):
        if appears:
            yield colour_marks(marks), meaning
