"""What `trueloop train --help` prints, and the same of the other commands that take a recipe."""

import inspect
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from trueloop.recipes import registry


def print_recipe_help(
    tokens: Sequence[str], command: str, purpose: str, flags: Sequence[inspect.Parameter], *ends: str
) -> bool:
    """Where help is asked for before a recipe is named, print the recipes and a command's own flags.

    Args:
        tokens: what was typed behind the command.
        command: its name.
        purpose: a sentence.
        flags: made by `recipe_line.flag`.
        ends: sentences below.

    Returns:
        True where it was asked for.
    """
    if not tokens or tokens[0] not in ("--help", "-h"):
        return False
    table = Table.grid(padding=(0, 3, 0, 0))
    for listing in registry.listings():
        table.add_row(f"[cyan]{listing.name}[/]", listing.summary)
    table.add_row("[cyan]FILE.py:FUNCTION[/]", "A function of yours that returns a Recipe.")
    table.add_row()
    for flag in flags:
        parameter = flag.annotation.__metadata__[0]
        table.add_row(f"[cyan]{parameter.name[0]}[/]", parameter.help)
    console = Console(highlight=False)
    console.print(f"Usage: trueloop {command} RECIPE [OPTIONS]\n", markup=False)
    console.print(f"{purpose}\n")
    console.print(table)
    console.print()
    for sentence in ends:
        console.print(sentence)
    console.print(f"\nEvery setting, with its default: [bold]trueloop {command} digits --help[/]")
    return True
