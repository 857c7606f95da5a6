"""`trueloop report`: write the report and the curves of a run again from its journal."""

import json as json_format
from pathlib import Path

from trueloop.app.option_types import Flag
from trueloop.runs.curves import CURVES_NAME, save_curves
from trueloop.runs.journal import read_journal
from trueloop.runs.report import write_report


def report_command(run: Path, *, json: Flag = False) -> None:
    """Write report.html and curves.png of a run from its journal, and print their paths.

    Args:
        run: Folder of the run.
        json: Print one JSON object and nothing else.
    """
    curves = run / CURVES_NAME
    history = read_journal(run)
    save_curves(history, curves)
    report = write_report(run, history)
    if json:
        print(json_format.dumps({"report": str(report), "curves": str(curves)}))
        return
    print(f"report  {report}")
    print(f"curves  {curves}")
