"""`trueloop doctor`: what of this machine would spoil a run, with a remedy for each."""

import json as json_format
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from trueloop.app.option_types import Flag
from trueloop.app.training.resource_needs import find_need
from trueloop.cli.doctor_options import DoctorOptions, select_checks
from trueloop.cli.doctor_page import print_report
from trueloop.doctor.diagnosis import RunRequirements
from trueloop.doctor.probe import read_machine
from trueloop.doctor.run_checks import has_errors, run_checks, summarize


def doctor_command(
    *,
    run: Annotated[str | None, Parameter(name="--for")] = None,
    asks: Annotated[DoctorOptions | None, Parameter(name="*")] = None,
    root: Path = Path("runs"),
    only: tuple[str, ...] = (),
    quick: Flag = False,
    json: Flag = False,
) -> int:
    """Look at this machine before a run does: torch and driver, memory, disk, limits, threads.

    Returns:
        The exit code: 0, or 1 where a run would fail.

    Args:
        run: A recipe, as for `trueloop train`, or a run: what it asks for is weighed against what is there.
        root: Where runs lie.
        only: Make only this check, or these: --only cpu-fallback --only disk.
        quick: Leave out what takes seconds: trying to import torchvision, and the free memory of GPUs.
        json: Print one JSON object and nothing else.
    """
    names = select_checks(only)
    asked, folder = find_need(run, root) if run else (RunRequirements(), root)
    need = (asks or DoctorOptions()).over(asked)
    machine = read_machine((asks and asks.run_dir) or folder, deep=not quick)
    found = [each for each in run_checks(machine, need) if not names or each.check.name in names]
    if json:
        record = {"would_fail": has_errors(found), "line": summarize(machine, found)}
        print(json_format.dumps({**record, "checks": [each.as_json() for each in found]}, indent=2))
    else:
        print_report(machine, found)
    return 1 if has_errors(found) else 0
