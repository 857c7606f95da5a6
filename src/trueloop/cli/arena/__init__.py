"""`trueloop arena`: commands of the arena. Each has its own module, which is imported when the command runs."""

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from trueloop.cli.grouped import command_group

BoardPath = Annotated[Path | None, Parameter(name="--board")]

SUBCOMMANDS = {
    "tracks": "List the tracks: their targets, and the settings of an entry.",
    "submit": "Submit a configuration; the judge runs it on fresh seeds.",
    "board": "Show the leaderboard.",
    "show": "Show everything about one entry, or print its script.",
    "replay": "Run an entry again, and compare its updates and weights.",
}


def arena_app() -> App:
    """Return the sub-application; its commands are imported only when they run."""
    return command_group(
        __name__,
        name="arena",
        help_text="Compete: reach a target accuracy in the fewest updates.",
        commands=SUBCOMMANDS,
    )
