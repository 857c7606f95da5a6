"""`trueloop recipes`: list the built-in recipes, which train without any code of the user."""

import dataclasses
import json
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console
from rich.table import Table

from trueloop.recipes import registry


def recipes_command(*, json_: Annotated[bool, Parameter(name="--json", negative=())] = False) -> None:
    """List the built-in recipes.

    Args:
        json_: Print a JSON list instead of a table.
    """
    listings = registry.listings()
    if json_:
        print(json.dumps([dataclasses.asdict(listing) for listing in listings]))
        return
    table = Table.grid(padding=(0, 3, 0, 0))
    for listing in listings:
        table.add_row(f"[bold cyan]{listing.name}[/]", f"[bold]{listing.summary}[/]")
        for word, text in (("model", listing.model), ("data", listing.data), ("time", listing.time)):
            table.add_row(f"[dim]{word}[/]", text)
        table.add_row()
    console = Console(highlight=False)
    console.print(table)
    console.print("[bold]trueloop train digits[/]                   train one; --help shows every setting")
    console.print("[bold]trueloop train path/to/recipe.py:build[/]  train your own: a function that returns a Recipe")
