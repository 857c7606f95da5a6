"""`trueloop runs export`: a run as CSV for a table, or as JSON for a program."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from trueloop.engines.store.journal import read
from trueloop.engines.store.runs.export import as_csv, as_json
from trueloop.engines.store.runs.named import find_run
from trueloop.engines.store.runs.overview import overview, require
from trueloop.faces.cli.options import Flag
from trueloop.faces.cli.runs import Root
from trueloop.ground.errors import InvalidConfig, RunFolderError


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
        csv: Write a row per update into this file, - for standard output.
        root: Where a run lies that is named without a path.
        json: Print one JSON object: updates, evaluations, checkpoints, notes, settings.
    """
    if (csv is None) != json or (csv or "").startswith("--"):
        raise InvalidConfig(
            "How to export is not clear.", fix="Say either --csv FILE (- for standard output) or --json."
        )
    seen = require(overview(find_run(run, root)))
    history = read(seen.path)
    if json:
        sys.stdout.write(as_json(seen, history))
        return
    text = io.StringIO()
    as_csv(history, text)
    if csv == "-":
        sys.stdout.write(text.getvalue())
        return
    path = Path(str(csv))
    beside = path.with_name(path.name + ".part")
    try:
        beside.write_text(text.getvalue(), encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        raise RunFolderError(
            f"{path} cannot be written: {error.strerror or error}.", fix="Name another file."
        ) from error
    print(f"csv  {path}")
