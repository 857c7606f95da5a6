"""`trueloop runs`: questions about runs, each in a file of its own; imported when it is asked."""

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from trueloop.cli.grouped import command_group

Root = Annotated[Path, Parameter(name="--root")]

SUBCOMMANDS = {
    "list": "List runs: filter, sort, as a table or as JSON.",
    "show": "Tell everything about one run.",
    "best": "Name the best evaluation of all runs and its checkpoint.",
    "compare": "Say what differs between runs, and how far each came.",
    "plot": "Draw the curves of runs: PNG, HTML or in the terminal.",
    "rollback": "Make a new run that starts at a checkpoint of another.",
    "export": "Write a run as CSV or JSON.",
    "sync": "Copy to MLflow, TensorBoard or W&B what is missing there.",
    "gc": "Remove checkpoints and runs that are not wanted; a dry run first.",
}


def runs_app() -> App:
    """Return the sub-application; nothing of its commands is imported yet."""
    return command_group(
        __name__, name="runs", line="Ask what runs did: list, compare, plot, roll back.", commands=SUBCOMMANDS
    )
