"""`trueloop runs export`: a run as CSV for a table, or as JSON for a program."""

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from trueloop.app.option_types import Flag
from trueloop.cli.columns import print_line
from trueloop.cli.runs import Root
from trueloop.core.errors import InvalidConfig, RunFolderError
from trueloop.runs.history import History
from trueloop.runs.journal import read_journal
from trueloop.runs.queries.export import write_csv, write_json
from trueloop.runs.queries.overview import read_overview, require_readable
from trueloop.runs.queries.resolve import find_run


def export_command(
    run: str,
    *,
    csv: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    root: Root = Path("runs"),
    json: Flag = False,
) -> None:
    """Write the updates and evaluations of a run for other programs.

    Args:
        run: A path, a name, or the beginning of a name or run id.
        csv: Write one row per update to this file; - is standard output.
        root: Folder in which a run is looked up by name.
        json: Print one JSON object: updates, evaluations, checkpoints, notes, settings.
    """
    if (csv is None) != json or (csv or "").startswith("--"):
        raise InvalidConfig(
            "Exactly one output format is needed.", fix="Pass either --csv FILE (- for standard output) or --json."
        )
    overview = require_readable(read_overview(find_run(run, root)))
    history = read_journal(overview.path)
    if json:
        write_json(overview, history, sys.stdout)
    elif csv == "-":
        write_csv(history, sys.stdout)
    else:
        print_line(f"csv  {_write_csv(history, Path(str(csv)))}")


def _write_csv(history: History, path: Path) -> Path:
    temporary = path.with_name(path.name + ".part")
    try:
        with temporary.open("w", encoding="utf-8", newline="") as file:
            write_csv(history, file)
        temporary.replace(path)
    except OSError as error:
        raise RunFolderError(
            f"{path} cannot be written: {error.strerror or error}.", fix="Name another file."
        ) from error
    return path
