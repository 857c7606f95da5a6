"""`trueloop runs`: commands that query and manage runs. Each has its own module, which is imported when it runs."""

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from trueloop.cli.grouped import command_group

Root = Annotated[Path, Parameter(name="--root")]

SUBCOMMANDS = {
    "list": "List runs: filter, sort, as a table or as JSON.",
    "show": "Show everything about one run.",
    "best": "Find the best evaluation of all runs and its checkpoint.",
    "compare": "Compare the settings, code, data and metrics of runs.",
    "plot": "Plot the curves of runs: as PNG, as HTML or in the terminal.",
    "rollback": "Create a new run that starts from a checkpoint of another run.",
    "export": "Write a run as CSV or JSON.",
    "sync": "Copy the missing parts of runs to MLflow, TensorBoard or W&B.",
    "gc": "List checkpoints and runs to clean up; with --yes, remove them.",
}


def runs_app() -> App:
    """Return the sub-application; its commands are imported only when they run."""
    return command_group(
        __name__, name="runs", help_text="Query and manage runs: list, compare, plot, roll back.", commands=SUBCOMMANDS
    )
