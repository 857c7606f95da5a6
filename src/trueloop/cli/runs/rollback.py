"""`trueloop runs rollback`: a new run that starts where another one was."""

import shlex
from pathlib import Path

from trueloop.app.option_types import Flag
from trueloop.app.runs.rollback import as_json, roll_back
from trueloop.cli.columns import print_line
from trueloop.cli.runs import Root
from trueloop.core.formatting import replace_unprintable
from trueloop.runs.queries.resolve import find_run


def rollback_command(
    run: str, *, to: str, run_dir: Path | None = None, root: Root = Path("runs"), json: Flag = False
) -> None:
    """Make a new run folder that starts from a checkpoint of a run; that run is only read, and may be training.

    Args:
        run: A path, a name, or the beginning of a name or run id.
        to: best, last, or the number of an update that has a checkpoint.
        run_dir: The new run's folder; by default the old name with the current time, next to the old one.
        root: Where a run lies that is named without a path.
        json: Print one JSON object and nothing else.
    """
    made = roll_back(find_run(run, root), to, run_dir)
    if json:
        print(as_json(made))
        return
    print_line(replace_unprintable(f"New run in {made.run_dir}, at update {made.checkpoint.update} of {made.source}."))
    for note in made.notes:
        print_line(replace_unprintable(note))
    if made.command:
        print_line(f"Go on      {replace_unprintable(shlex.join(made.command))}")
