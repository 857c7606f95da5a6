"""`trueloop arena`: reach a target in the fewest updates; each question in a file of its own, imported when asked."""

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from trueloop.cli.grouped import command_group

BoardPath = Annotated[Path | None, Parameter(name="--board")]

SUBCOMMANDS = {
    "tracks": "List the tracks: what is to be reached, and what may be set.",
    "submit": "Submit a configuration; the judge runs it on fresh seeds.",
    "board": "Show who is ahead.",
    "show": "Tell everything about one entry, or write out its script.",
    "replay": "Run an entry again: the same updates, the same weights?",
}


def arena_app() -> App:
    """Return the sub-application; nothing of its commands is imported yet."""
    return command_group(
        __name__, name="arena", line="Compete: reach a target accuracy in the fewest updates.", commands=SUBCOMMANDS
    )
