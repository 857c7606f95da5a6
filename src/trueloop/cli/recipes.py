"""`trueloop recipes`: list the built-in recipes, which train without any code of the user."""

import dataclasses
import json as json_format

from rich.console import Console
from rich.table import Table

from trueloop.app.option_types import Flag
from trueloop.recipes import registry


def recipes_command(*, json: Flag = False) -> None:
    """List the built-in recipes.

    Args:
        json: Print a JSON list instead of a table.
    """
    listings = registry.listings()
    if json:
        print(json_format.dumps([dataclasses.asdict(listing) for listing in listings]))
        return
    table = Table.grid(padding=(0, 3, 0, 0))
    for listing in listings:
        table.add_row(f"[bold cyan]{listing.name}[/]", f"[bold]{listing.summary}[/]")
        for label, text in (("model", listing.model), ("data", listing.data), ("time", listing.time)):
            table.add_row(f"[dim]{label}[/]", text)
        table.add_row()
    console = Console(highlight=False)
    console.print(table)
    console.print("[bold]trueloop train digits[/]                   train one; --help shows every setting")
    console.print("[bold]trueloop train path/to/recipe.py:build[/]  train your own: a function that returns a Recipe")
