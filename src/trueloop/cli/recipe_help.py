"""Print the help of `trueloop train` and of the other commands that take a recipe, if no recipe is named."""

import inspect
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from trueloop.recipes import registry


def print_recipe_help(
    tokens: Sequence[str], command: str, purpose: str, flags: Sequence[inspect.Parameter], *remarks: str
) -> bool:
    """Print the recipes and the flags of a command if its first word asks for help.

    Args:
        tokens: the arguments after the command.
        command: name of the command.
        purpose: sentence that describes the command.
        flags: flags of the command, created by `recipe_line.flag`.
        remarks: sentences printed below the flags.

    Returns:
        True if the help was printed.
    """
    if not tokens or tokens[0] not in ("--help", "-h"):
        return False
    table = Table.grid(padding=(0, 3, 0, 0))
    for listing in registry.listings():
        table.add_row(f"[cyan]{listing.name}[/]", listing.summary)
    table.add_row("[cyan]FILE.py:FUNCTION[/]", "Your own function that returns a Recipe.")
    table.add_row()
    for flag in flags:
        parameter = flag.annotation.__metadata__[0]
        table.add_row(f"[cyan]{parameter.name[0]}[/]", parameter.help)
    console = Console(highlight=False)
    console.print(f"Usage: trueloop {command} RECIPE [OPTIONS]\n", markup=False)
    console.print(f"{purpose}\n")
    console.print(table)
    console.print()
    for remark in remarks:
        console.print(remark)
    console.print(f"\nEvery setting, with its default: [bold]trueloop {command} digits --help[/]")
    return True
