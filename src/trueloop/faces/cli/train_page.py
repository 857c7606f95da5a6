"""What `trueloop train --help` prints."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from trueloop.faces.cli.recipe_line import RUN_FLAGS
from trueloop.recipes import registry


def print_overview() -> None:
    """Print the recipes and the flags that say where a run goes; settings are the recipes' own."""
    table = Table.grid(padding=(0, 3, 0, 0))
    for listing in registry.listings():
        table.add_row(f"[cyan]{listing.name}[/]", listing.summary)
    table.add_row("[cyan]FILE.py:FUNCTION[/]", "A function of yours that returns a Recipe.")
    table.add_row()
    for flag in RUN_FLAGS:
        parameter = flag.annotation.__metadata__[0]
        table.add_row(f"[cyan]{parameter.name[0]}[/]", parameter.help)
    console = Console(highlight=False)
    console.print("Usage: trueloop train RECIPE [OPTIONS]\n", markup=False)
    console.print("Train a recipe and keep everything that belongs to the run in one folder.\n")
    console.print(table)
    console.print("\nWithout --run-dir, the same run goes on where it was cut off.")
    console.print("Exit code: 0 done, 1 error, 2 wrong usage, 130 Ctrl-C, 143 SIGTERM (run saved).")
    console.print("\nEvery setting, with its default: [bold]trueloop train digits --help[/]")
