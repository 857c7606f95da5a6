"""`trueloop runs rollback`: create a new run that starts from a checkpoint of another run."""

import json as json_format
import shlex
from pathlib import Path

from trueloop.app.option_types import Flag
from trueloop.app.runs.rollback import roll_back
from trueloop.cli.columns import print_line
from trueloop.cli.runs import Root
from trueloop.core.formatting import replace_unprintable
from trueloop.runs.queries.resolve import find_run


def rollback_command(
    run: str, *, to: str, run_dir: Path | None = None, root: Root = Path("runs"), json: Flag = False
) -> None:
    """Create a run folder that starts from a checkpoint of a run. The old run is only read, and may be training.

    Args:
        run: The old run: a path, a name, or the beginning of a name or run id.
        to: Checkpoint to start from: best, last, or the number of an update that has a checkpoint.
        run_dir: Folder of the new run; by default next to the old one, with its name and the current time.
        root: Folder in which a run is looked up by name.
        json: Print one JSON object and nothing else.
    """
    new = roll_back(find_run(run, root), to, run_dir)
    if json:
        print(json_format.dumps(new.as_json()))
        return
    print_line(replace_unprintable(f"New run in {new.run_dir}, at update {new.checkpoint.update} of {new.source}."))
    for note in new.notes:
        print_line(replace_unprintable(note))
    if new.command:
        print_line(f"Resume     {replace_unprintable(shlex.join(new.command))}")
